"""The type checker that the annotations meet while the tests run: a whole number is a float."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
