// The ChunkMap in the page: a canvas of cells, sliders for the dimensions that are not drawn.

const SIDE = 22; // of a cell, in pixels, at most
const LEAST = 4;
const TALLEST = 420;

class ChunkMapView {
  constructor(state) {
    this.state = state;
    this.at = [];
    this.headline = element("div", { class: "gpuload-headline", role: "status" });
    this.sliders = element("div", { class: "gpuload-sliders" });
    this.canvas = element("canvas", { tabindex: "0", role: "img" });
    this.scale = element("div", { class: "gpuload-axis" });
    this.words = element("div", { class: "gpuload-words" }, "hover a chunk for its requests, click it for its code");
    this.code = element("code", { class: "gpuload-code" });
    const kinds = ["fastpath", "fallback", "both", "missing", "never"];
    const legend = kinds.flatMap((kind) => [sample(kind), kind === "never" ? "never read" : kind]);
    this.root = element(
      "div",
      { class: "gpuload-live gpuload-chunkmap" },
      this.headline,
      this.sliders,
      element("div", { class: "gpuload-canvas" }, this.canvas),
      this.scale,
      element("div", { class: "gpuload-legend" }, ...legend),
      this.words,
      this.code,
    );
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("click", (event) => this.choose(event));
    new ResizeObserver(() => this.draw()).observe(this.root);
    // A theme is told by attributes of the body: the canvas does not follow by itself.
    new MutationObserver(() => this.draw()).observe(document.body, { attributes: true });
    this.draw();
  }

  shown() {
    this.draw();
  }

  draw() {
    const { grid, snapshot } = this.state;
    if (!grid) return;
    if (this.grid !== grid) this.begin(grid);
    const counts = Object.entries(snapshot.counts).filter(([, n]) => n);
    for (const [kind, n] of Object.entries(snapshot.counts)) this.root.dataset[kind.replace(" ", "")] = n;
    this.root.dataset.state = snapshot.done ? "ended" : "live";
    const shape = this.state.grid.shape.map(exactly).join(" × ");
    this.headline.textContent =
      `${this.state.name}: ${shape} chunks · ${counts.map(([kind, n]) => `${exactly(n)} ${kind}`).join(" · ")}`;
    this.canvas.setAttribute("aria-label", this.headline.textContent);
    this.paint();
  }

  begin(grid) {
    this.grid = grid;
    this.at = grid.shape.slice(0, -2).map(() => 0);
    const sliders = this.at.map((_, dim) => {
      const input = element("input", { type: "range", min: 0, max: grid.shape[dim] - 1, value: 0 });
      const words = element("span", {}, "0");
      input.addEventListener("input", () => {
        this.at[dim] = Number(input.value);
        words.textContent = input.value;
        this.draw();
      });
      input.addEventListener("keydown", (event) => event.stopPropagation());
      return element("label", {}, `${grid.dims[dim]} `, input, words);
    });
    this.sliders.replaceChildren(...sliders);
  }

  paint() {
    const { grid } = this;
    const room = this.canvas.parentElement.clientWidth;
    if (!room) return;
    // So many chunks a cell that cells are large enough to be told apart.
    this.step = Math.max(1, Math.ceil(grid.columns / (room / LEAST)), Math.ceil(grid.rows / (TALLEST / LEAST)));
    const columns = Math.ceil(grid.columns / this.step);
    const rows = Math.ceil(grid.rows / this.step);
    this.side = Math.max(LEAST, Math.min(SIDE, Math.floor(room / columns), Math.floor(TALLEST / rows)));
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = columns * this.side * ratio;
    this.canvas.height = rows * this.side * ratio;
    this.canvas.style.width = `${columns * this.side}px`;
    this.canvas.style.height = `${rows * this.side}px`;
    Object.assign(this.canvas.dataset, { side: this.side, step: this.step, columns, rows });
    this.scale.textContent =
      `${grid.dims.at(-2) ?? ""} ↓ ${grid.dims.at(-1)} →` +
      (this.step > 1 ? ` · a cell is ${this.step} × ${this.step} chunks` : "");
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const look = colours(this.root);
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const kind = grid.kind(this.numbers(row, column), this.state.snapshot.ways);
        cell(pen, kind, column * this.side, row * this.side, this.side, look);
      }
    }
  }

  // The chunks of one cell, as [first, last) along the drawn dimensions.
  span(row, column) {
    const { rows, columns } = this.grid;
    const down = [row * this.step, Math.min((row + 1) * this.step, rows)];
    return { down, across: [column * this.step, Math.min((column + 1) * this.step, columns)] };
  }

  numbers(row, column) {
    const { down, across } = this.span(row, column);
    const found = [];
    for (let y = down[0]; y < down[1]; y += 1)
      for (let x = across[0]; x < across[1]; x += 1) found.push(this.grid.number(this.at, y, x));
    return found;
  }

  under(event) {
    const row = Math.floor(event.offsetY / this.side);
    const column = Math.floor(event.offsetX / this.side);
    const inside = row >= 0 && column >= 0 && row < this.canvas.dataset.rows && column < this.canvas.dataset.columns;
    return inside ? { row, column } : null;
  }

  range(row, column) {
    const { down, across } = this.span(row, column);
    const first = [...this.at, down[0], across[0]].slice(-this.grid.shape.length);
    const last = [...this.at.map((i) => i + 1), down[1], across[1]].slice(-this.grid.shape.length);
    return { first, last };
  }

  hover(event) {
    const found = this.under(event);
    if (!found) return;
    const { ways } = this.state.snapshot;
    const total = new Map();
    const numbers = this.numbers(found.row, found.column);
    for (const number of numbers) {
      for (const [way, tally] of this.grid.chunks.get(number) ?? []) {
        const sum = total.get(way) ?? { requests: 0, bytes: 0, latency: 0 };
        sum.requests += tally.requests;
        sum.bytes += tally.bytes;
        sum.latency = Math.max(sum.latency, tally.latency);
        total.set(way, sum);
      }
    }
    const lines = [...total].map(([way, tally]) => {
      const [path, backend, reason] = ways[way];
      const why = reason ? ` (${reason})` : "";
      const much = `${exactly(tally.requests)} × ${path} by ${backend}${why}, ${sizeWords(tally.bytes)}`;
      return `${much}, at most ${durationWords(tally.latency)}`;
    });
    const { first, last } = this.range(found.row, found.column);
    const name = numbers.length === 1 ? `chunk (${first.join(", ")})` : `chunks (${first.join(", ")}) to (${last.join(", ")})`;
    const kind = this.grid.kind(numbers, ways);
    this.words.textContent = `${name}: ${lines.join("; ") || (kind === "missing" ? "no file: its fill value" : "never read")}`;
  }

  choose(event) {
    const found = this.under(event);
    if (!found) return;
    const { first, last } = this.range(found.row, found.column);
    this.code.textContent = this.grid.code(first, last);
  }
}

function colours(root) {
  const style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(name).trim();
  return { fastpath: colour("--gpuload-fastpath"), fallback: colour("--gpuload-fallback"), line: style.color };
}

// Solid: fastpath. Striped: fallback. Striped on solid: both. A dot: no file. Empty: never read.
function cell(pen, kind, x, y, side, look) {
  const gap = side > 6 ? 1 : 0.5;
  const inner = side - 2 * gap;
  pen.save();
  pen.translate(x + gap, y + gap);
  pen.beginPath();
  pen.rect(0, 0, inner, inner);
  pen.clip();
  if (kind === "fastpath" || kind === "both") {
    pen.fillStyle = look.fastpath;
    pen.fillRect(0, 0, inner, inner);
  }
  if (kind === "fallback" || kind === "both") {
    pen.strokeStyle = look.fallback;
    pen.lineWidth = Math.max(1.5, side / 7);
    pen.beginPath();
    // One stripe goes through the middle, so that also the smallest cell has its colour.
    for (let at = inner % (side / 2.5); at <= 2 * inner; at += side / 2.5) {
      pen.moveTo(at, 0);
      pen.lineTo(at - inner, inner);
    }
    pen.moveTo(inner, 0);
    pen.lineTo(0, inner);
    pen.stroke();
  }
  if (kind === "missing") {
    pen.fillStyle = look.line;
    pen.globalAlpha = 0.6;
    pen.fillRect(inner / 2 - inner / 6, inner / 2 - inner / 6, inner / 3, inner / 3);
  }
  pen.globalAlpha = kind === "never" || kind === "missing" ? 0.35 : 0.7;
  pen.strokeStyle = look.line;
  pen.lineWidth = 1;
  pen.strokeRect(0, 0, inner, inner);
  pen.restore();
}

function sample(kind) {
  const canvas = element("canvas", { class: "gpuload-sample", width: 28, height: 28, "aria-hidden": "true" });
  const observer = new MutationObserver(paint);
  function paint() {
    if (!canvas.isConnected) return;
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, 28, 28);
    cell(pen, kind, 0, 0, 28, colours(canvas));
  }
  observer.observe(document.body, { attributes: true });
  new ResizeObserver(paint).observe(canvas);
  return canvas;
}

export default () => {
  const state = { snapshot: {}, grid: null, name: "" };
  function take(snapshot) {
    if (snapshot.whole) {
      const same = state.grid && String(state.grid.shape) === String(snapshot.grid) && state.grid;
      const grid = new Grid(snapshot);
      if (same) Object.assign(same, { chunks: grid.chunks, missing: grid.missing });
      state.grid = same || grid;
      state.name = snapshot.name;
    } else if (!state.grid) {
      return false; // the beginning was missed: it is asked for, and comes when the kernel is free
    }
    state.grid.take(snapshot.tallies);
    state.snapshot = snapshot;
    return true;
  }
  return widget(take, () => new ChunkMapView(state));
};
