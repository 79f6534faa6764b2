"""Every statement of the papers' theory, held against an independent route: `local-elasticity verify`."""

from local_elasticity.papers.certificates.certificate import Certificate, Check, Verdict
from local_elasticity.papers.certificates.verify import certificates

__all__ = ["Certificate", "Check", "Verdict", "certificates"]
