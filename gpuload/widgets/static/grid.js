// What the page knows of an array's chunks, and what one cell of the picture stands for.

class Grid {
  constructor(state) {
    this.shape = state.grid.length ? state.grid : [1];
    this.edges = state.edges;
    this.dims = state.grid.length ? state.dims : ["the only chunk"];
    this.scalar = !state.grid.length;
    this.missing = new Set(state.missing);
    this.chunks = new Map(); // number of a chunk -> its tallies by way
  }

  take({ chunk, way, requests, bytes, latency }) {
    for (let i = 0; i < chunk.length; i += 1) {
      if (!this.chunks.has(chunk[i])) this.chunks.set(chunk[i], new Map());
      this.chunks.get(chunk[i]).set(way[i], { requests: requests[i], bytes: bytes[i], latency: latency[i] });
    }
  }

  get rows() {
    return this.shape.length > 1 ? this.shape.at(-2) : 1;
  }

  get columns() {
    return this.shape.at(-1);
  }

  // The number of the chunk at a row and column of the slice that `at` chooses along the first dimensions.
  number(at, row, column) {
    const before = at.reduce((number, i, dim) => number * this.shape[dim] + i, 0);
    return (before * this.rows + row) * this.columns + column;
  }

  // "fastpath", "fallback", "both", "missing" or "never"; of several chunks, what is known of any of them.
  kind(numbers, ways) {
    const paths = new Set();
    let missing = 0;
    for (const number of numbers) {
      for (const way of this.chunks.get(number)?.keys() ?? []) paths.add(ways[way][0]);
      if (this.missing.has(number)) missing += 1;
    }
    if (paths.size > 1) return "both";
    if (paths.size) return [...paths][0];
    return missing === numbers.length ? "missing" : "never";
  }

  begin(dim, chunk) {
    const edges = this.edges[dim];
    return Array.isArray(edges) ? edges[chunk] : Math.min(chunk * edges.step, edges.extent);
  }

  // The code that reads chunks [first, last) along each dimension.
  code(first, last) {
    if (this.scalar) return "array[()]";
    return `array[${first.map((from, dim) => `${this.begin(dim, from)}:${this.begin(dim, last[dim])}`).join(", ")}]`;
  }
}
