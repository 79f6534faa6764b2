// @ts-check
// A page that is opened from a file may start no worker, which the site's search wants. There a hidden frame runs the
// worker's script instead; the theme knows it by the name IFrameWorker.
"use strict";

class IFrameWorker extends EventTarget {
  /** @param {string} url */
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    /** @type {any} */
    this.inside = frame.contentWindow;
    /** @param {unknown} data */
    this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = this.inside.document.createElement("script");
    script.src = url;
    this.loaded = new Promise((done) => script.addEventListener("load", done));
    this.inside.document.body.append(script);
  }

  /** @param {unknown} data */
  async postMessage(data) {
    await this.loaded;
    this.inside.dispatchEvent(new MessageEvent("message", { data }));
  }
}

if (location.protocol === "file:") Object.assign(window, { IFrameWorker, Worker: IFrameWorker });
