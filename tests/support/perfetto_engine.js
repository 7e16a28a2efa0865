// Perfetto's engine, as its page runs it in a worker of the browser, but under node: reads the file
// of requests, and writes the answers.
//
//     node perfetto_engine.js .../engine_bundle.js REQUESTS ANSWERS
"use strict";
const fs = require("fs");
const path = require("path");

const [bundle, requests, answers] = process.argv.slice(2);
const file = fs.openSync(answers, "w");

// What the bundle uses of a worker of the browser.
globalThis.WorkerGlobalScope = class {};
globalThis.self = { location: { href: "" } };
globalThis.XMLHttpRequest = class {
  open(_, name) {
    this.path = path.join(path.dirname(bundle), name);
  }
  send() {
    this.response = fs.readFileSync(this.path);
  }
};

// The two names are hidden from it: where it finds them it refuses to run.
new Function("process", "require", fs.readFileSync(bundle, "utf8"))();
const port = { postMessage: (bytes) => fs.writeSync(file, bytes) };
self.onmessage({ data: port });

// Node has nothing left to do when the engine has started.
process.once("beforeExit", () => port.onmessage({ data: new Uint8Array(fs.readFileSync(requests)) }));
