// The newest single requests, filtered in the page: while a cell runs, the kernel answers nobody.

const KEPT = 5000;
const LISTED = 200;

// What the page holds of the requests; shared by all views of one model.
class Requests {
  constructor() {
    this.forget();
  }

  forget() {
    this.rows = []; // oldest first
    this.next = 0; // the number of the next request of the record
  }

  take(newest) {
    for (let i = Math.max(0, this.next - newest.first); i < newest.key.length; i += 1) {
      const [path, backend, reason, decode] = newest.ways[newest.way[i]];
      const row = { number: newest.first + i, path, backend, reason, decode };
      row.key = newest.key[i];
      row.offset = newest.offset[i];
      row.bytes = newest.bytes[i];
      row.latency = newest.latency[i];
      row.words = `${path} ${backend} ${reason ?? ""} ${decode} ${row.key}`.toLowerCase();
      this.rows.push(row);
    }
    this.next = Math.max(this.next, newest.first + newest.key.length);
    if (this.rows.length > KEPT) this.rows.splice(0, this.rows.length - KEPT);
  }
}

class RequestList {
  constructor() {
    this.since = 0;
    this.held = [];
    this.filter = element("input", {
      type: "search",
      class: "gpuload-filter",
      placeholder: "filter: words of key, path, backend, reason",
      "aria-label": "filter the requests",
    });
    this.filter.addEventListener("input", () => this.draw(this.held));
    // The notebook's own keys must not fire while somebody types here.
    this.filter.addEventListener("keydown", (event) => event.stopPropagation());
    this.count = element("span", { class: "gpuload-count", "aria-live": "off" });
    this.body = element("tbody");
    const heads = ["path", "backend", "reason", "bytes", "offset", "latency", "key"];
    const head = element("tr", {}, ...heads.map((words) => element("th", { scope: "col", class: side(words) }, words)));
    const table = element("table", { class: "gpuload-requests" }, element("thead", {}, head), this.body);
    this.details = element(
      "details",
      {},
      element("summary", {}, "single requests"),
      element("div", { class: "gpuload-tools" }, this.filter, this.count),
      element("div", { class: "gpuload-scroll gpuload-tall", tabindex: "0" }, table),
    );
    this.details.addEventListener("toggle", () => this.draw(this.held));
    this.root = this.details;
  }

  matching(rows) {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    return rows.filter((row) => row.number >= this.since && words.every((word) => row.words.includes(word)));
  }

  draw(rows) {
    this.held = rows;
    if (!this.details.open) return;
    const found = this.matching(rows);
    const shown = found.slice(-LISTED).reverse();
    this.count.textContent =
      `${exactly(found.length)} of the newest ${exactly(rows.length)}` +
      (found.length > LISTED ? `, ${LISTED} shown` : "");
    this.body.replaceChildren(...shown.map(requestRow));
  }
}

const LEFT = new Set(["path", "backend", "reason", "decode", "key", "example key"]);
const side = (head) => (LEFT.has(head) ? "gpuload-left" : "gpuload-right");

function pathCell(path) {
  return element("td", { class: "gpuload-left" }, swatch(path), path);
}

function keyCell(key) {
  return element("td", { class: "gpuload-left gpuload-key", title: key }, element("bdi", {}, key));
}

function textCell(words, title) {
  const cell = element("td", { class: "gpuload-left" }, words);
  if (title) cell.title = title;
  return cell;
}

function numberCell(words, title) {
  const cell = element("td", { class: "gpuload-right" }, words);
  if (title) cell.title = title;
  return cell;
}

function requestRow(row) {
  return element(
    "tr",
    { "data-number": row.number, "data-path": row.path },
    pathCell(row.path),
    textCell(row.backend),
    textCell(row.reason ?? "-"),
    numberCell(exactly(row.bytes)),
    numberCell(exactly(row.offset)),
    numberCell(durationWords(row.latency)),
    keyCell(row.key),
  );
}
