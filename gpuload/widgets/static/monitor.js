// The Monitor in the page: the newest state of one model, and its views. Pause, clear, filter and save act here.

class MonitorView {
  constructor(state) {
    this.state = state;
    this.paused = null; // the snapshot that stands still, and the requests held then
    this.clearedAt = -1;
    this.headline = element("div", { class: "gpuload-headline", role: "status" });
    this.status = element("span", { class: "gpuload-status" });
    this.pause = button("Pause", "hold the picture still; reading goes on", () => this.togglePause());
    this.pause.setAttribute("aria-pressed", "false");
    const clear = button("Clear", "empty the picture and the list; the totals stay", () => this.clear());
    const json = button("Save JSON", "the totals and the newest requests", () => this.saveJson());
    const csv = button("Save CSV", "the newest requests that match the filter", () => this.saveCsv());
    this.chart = new Chart();
    this.list = new RequestList();
    this.body = element("tbody");
    this.notes = element("div", { class: "gpuload-notes" });
    const heads = ["path", "backend", "reason", "requests", "bytes", "p50", "p99", "example key"];
    const head = element("tr", {}, ...heads.map((words) => element("th", { scope: "col", class: side(words) }, words)));
    const table = element("table", { class: "gpuload-ways" }, element("thead", {}, head), this.body);
    this.root = element(
      "div",
      { class: "gpuload-live gpuload-monitor" },
      this.headline,
      element("div", { class: "gpuload-tools" }, this.pause, clear, json, csv, this.status),
      this.chart.root,
      element("div", { class: "gpuload-scroll" }, table),
      this.notes,
      this.list.root,
    );
    this.draw();
  }

  togglePause() {
    const { snapshot, requests } = this.state;
    this.paused = this.paused ? null : { snapshot, rows: [...requests.rows] };
    this.pause.textContent = this.paused ? "Resume" : "Pause";
    this.pause.setAttribute("aria-pressed", String(Boolean(this.paused)));
    this.draw();
  }

  clear() {
    this.clearedAt = this.state.snapshot.bins.end;
    this.list.since = this.state.requests.next;
    this.draw();
  }

  draw() {
    const snapshot = this.paused ? this.paused.snapshot : this.state.snapshot;
    if (!snapshot.rows) return;
    if (this.generation !== snapshot.generation) {
      this.generation = snapshot.generation; // the record was emptied: what was cleared before is no longer there
      this.clearedAt = -1;
      this.list.since = 0;
    }
    this.root.dataset.requests = snapshot.requests;
    this.root.dataset.bytes = snapshot.bytes;
    this.root.dataset.state = this.paused ? "paused" : snapshot.done ? "ended" : "live";
    this.headline.textContent = snapshot.headline;
    this.status.textContent = this.root.dataset.state;
    this.chart.draw(snapshot.bins, this.clearedAt);
    this.body.replaceChildren(...snapshot.rows.map((row) => wayRow(row, snapshot.explanations)));
    this.notes.replaceChildren(...snapshot.notes.map((note) => element("div", {}, note)));
    this.list.draw(this.paused ? this.paused.rows : this.state.requests.rows);
  }

  saveJson() {
    const snapshot = this.paused ? this.paused.snapshot : this.state.snapshot;
    const requests = this.list.matching(this.list.held).map(({ words, ...row }) => row);
    const { headline, rows, filled, bytes, moved, seconds } = snapshot;
    const all = { headline, requests: snapshot.requests, bytes, moved, seconds, filled, rows, newest: requests };
    save("gpuload.json", "application/json", JSON.stringify(all, null, 1));
  }

  saveCsv() {
    const heads = ["number", "path", "backend", "reason", "decode", "key", "offset", "bytes", "latency"];
    const lines = this.list.matching(this.list.held).map((row) => heads.map((head) => csvField(row[head])).join(","));
    save("gpuload.csv", "text/csv", [heads.join(","), ...lines, ""].join("\n"));
  }
}

function wayRow(row, explanations) {
  return element(
    "tr",
    { "data-path": row.path, "data-requests": row.requests, "data-bytes": row.bytes },
    pathCell(row.path),
    textCell(row.backend, row.declined),
    textCell(row.reason ?? "-", explanations[row.reason]),
    numberCell(exactly(row.requests)),
    numberCell(sizeWords(row.bytes), `${exactly(row.bytes)} bytes wanted, ${exactly(row.moved)} moved`),
    numberCell(durationWords(row.p50)),
    numberCell(durationWords(row.p99)),
    keyCell(row.key),
  );
}

export default () => {
  const state = { snapshot: {}, requests: new Requests() };
  function take(snapshot) {
    if (state.snapshot.generation !== snapshot.generation) state.requests.forget();
    state.snapshot = snapshot;
    state.requests.take(snapshot.newest);
  }
  return widget(take, () => new MonitorView(state));
};
