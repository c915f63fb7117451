// What the page has received: the position of each stream, and the lines. Has no part of the page, so that it can be
// tested alone.

/** Lines that are kept; older ones are dropped first, and counted. */
export const MAX_LINES = 100_000;
/** Characters that are kept of one line. The rest is in the download. */
export const MAX_LINE = 4096;

const encoder = new TextEncoder();

/** The events of a text/event-stream, from its pieces. */
export class EventParser {
  #rest = "";

  /** Returns the events that are complete with this piece: [name, data]. */
  push(text) {
    const blocks = (this.#rest + text).split("\n\n");
    this.#rest = blocks.pop();
    const events = [];
    for (const block of blocks) {
      let name = "", data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        if (line.startsWith("data: ")) data = line.slice(6);
      }
      if (name) events.push([name, JSON.parse(data)]);
    }
    return events;
  }
}

const bytesOf = (event) =>
  event.encoding === "base64" ? Uint8Array.from(atob(event.data), (char) => char.charCodeAt(0)) : encoder.encode(event.data);

/** The streams and lines of one run of a job. */
export class Store {
  streams = new Map();
  lines = [];
  /** The last line of each rank. */
  last = new Map();
  /** Lines that were dropped because there were too many. */
  dropped = 0;
  /** Bytes that were lost, as the server counts them. */
  lost = 0;
  /** Bytes that came although the store had them, and that did not come: both are faults. */
  doubled = 0;
  missing = 0;
  exit = undefined;
  #unsorted = false;

  /** Returns the value of Last-Event-ID that continues behind what the store has. */
  lastEventId(run) {
    const positions = [...this.streams].filter(([, stream]) => stream.position > 0);
    return `${run}:${positions.map(([key, stream]) => `${key}.${stream.position}`).join(",")}`;
  }

  apply(name, event) {
    if (name === "exit") this.exit = event.exit_code;
    if (event.streams !== undefined) {
      this.lost += event.lost;
      this.#add({ ...this.#place(event, Date.now() * 1e6), gap: true, text: `${event.streams} streams with ${event.lost} bytes are missing` });
    }
    if (event.offset === undefined) return;
    const stream = this.#stream(event);
    if (name === "output") this.#output(stream, event);
    if (name === "gap") {
      const lost = event.offset + event.lost - Math.max(event.offset, stream.position);
      this.#end(stream);
      stream.position = Math.max(stream.position, event.offset + event.lost);
      this.lost += Math.max(0, lost);
      if (lost > 0) this.#add({ ...this.#place(event, stream.time), gap: true, text: `${lost} bytes from offset ${event.offset} on were lost` });
    }
    if (name === "end" && event.missing !== 0 && !stream.ended) {
      const text = event.missing ? `at least ${event.missing} bytes are missing at the end` : "the engine was lost: more may be missing";
      this.#add({ ...this.#place(event, stream.time), gap: true, text });
    }
    if (name === "end") { this.#end(stream); stream.ended = true; }
  }

  #place(event, time) {
    return { rank: event.rank, channel: event.channel, time };
  }

  #stream(event) {
    const key = `${event.rank ?? "-"}.${event.logged ? "log-" : ""}${event.channel}`;
    let stream = this.streams.get(key);
    if (!stream) {
      stream = { position: 0, begun: false, time: 0, open: null, decoder: new TextDecoder(), ended: false };
      this.streams.set(key, stream);
    }
    return stream;
  }

  #output(stream, event) {
    let bytes = bytesOf(event), offset = event.offset;
    const times = event.times ?? [[offset, event.time ?? stream.time]];
    // A stream begins where the first event says.
    if (!stream.begun && stream.position === 0) stream.position = offset;
    stream.begun = true;
    if (offset < stream.position) {
      const had = Math.min(bytes.length, stream.position - offset);
      this.doubled += had;
      bytes = bytes.subarray(had);
      offset += had;
    }
    this.missing += Math.max(0, offset - stream.position);
    stream.position = offset + bytes.length;
    let next = 0;
    while (bytes.length) {
      while (next < times.length && times[next][0] <= offset) stream.time = times[next++][1];
      const newline = bytes.indexOf(10);
      const part = newline < 0 ? bytes : bytes.subarray(0, newline);
      if (!stream.open) {
        stream.open = { ...this.#place(event, stream.time), text: "" };
        this.#add(stream.open);
      }
      if (stream.open.text.length < MAX_LINE) stream.open.text += stream.decoder.decode(part, { stream: true });
      if (newline >= 0) this.#end(stream);
      const length = newline < 0 ? bytes.length : newline + 1;
      bytes = bytes.subarray(length);
      offset += length;
    }
  }

  #end(stream) {
    if (!stream.open) return;
    const text = stream.open.text + stream.decoder.decode();
    stream.open.text = text.length > MAX_LINE ? `${text.slice(0, MAX_LINE)}… (cut: see the download)` : text;
    stream.open = null;
  }

  #add(line) {
    const newest = this.lines.at(-1);
    this.#unsorted ||= newest !== undefined && newest.time > line.time;
    this.lines.push(line);
    this.last.set(line.rank, line);
    if (this.lines.length > MAX_LINES * 1.1) {
      this.sort();
      this.dropped += this.lines.length - MAX_LINES;
      this.lines = this.lines.slice(-MAX_LINES);
    }
  }

  /** Merges the streams by time. Returns whether the order of earlier lines has changed. */
  sort() {
    if (!this.#unsorted) return false;
    // Stable: lines of one stream keep their order.
    this.lines.sort((one, other) => one.time - other.time);
    this.#unsorted = false;
    return true;
  }
}

/** Returns the parts of a line with the classes of their colours (SGR). Other control characters become visible. */
export function ansi(text, state = {}) {
  const parts = [];
  for (const piece of text.split(/(\x1b\[[\d;]*m)/)) {
    const sgr = /^\x1b\[([\d;]*)m$/.exec(piece);
    if (sgr) style(state, sgr[1].split(";").map(Number));
    else if (piece) {
      const visible = piece.replace(/[\x00-\x08\x0a-\x1f\x7f]/g, (char) => `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`);
      parts.push([visible, Object.values(state).filter(Boolean).join(" ")]);
    }
  }
  return parts;
}

function style(state, codes) {
  for (let index = 0; index < codes.length; index++) {
    const code = codes[index];
    const names = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse" };
    if (code === 0) for (const key of Object.keys(state)) delete state[key];
    else if (names[code]) state[names[code]] = names[code];
    else if (code === 22) { state.bold = ""; state.dim = ""; }
    else if (code >= 23 && code <= 27 && names[code - 20]) state[names[code - 20]] = "";
    else if (code === 39) state.front = "";
    else if (code === 49) state.back = "";
    else if (code >= 30 && code <= 37) state.front = `f${code - 30}`;
    else if (code >= 90 && code <= 97) state.front = `f${code - 90}`;
    else if (code >= 40 && code <= 47) state.back = `b${code - 40}`;
    else if (code >= 100 && code <= 107) state.back = `b${code - 100}`;
    else if (code === 38 || code === 48) {
      // Of the 256 colours, the first 16 are shown.
      const isPalette = codes[index + 1] === 5;
      if (isPalette && codes[index + 2] < 16) state[code === 38 ? "front" : "back"] = (code === 38 ? "f" : "b") + (codes[index + 2] % 8);
      index += isPalette ? 2 : 4;
    }
  }
}
