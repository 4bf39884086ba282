// The stacked picture of bytes a second by path over time: an SVG, so that themes reach it.

const CHART = { width: 600, height: 100 };
let charts = 0;

class Chart {
  constructor() {
    const hatch = `gpuload-hatch-${(charts += 1)}`;
    this.fastpath = drawn("path", { class: "gpuload-area-fastpath" });
    this.fallback = drawn("path", { class: "gpuload-area-fallback", fill: `url(#${hatch})` });
    const lines = drawn("path", { d: "M-2 2 L2 -2 M0 8 L8 0 M6 10 L10 6", class: "gpuload-hatch" });
    const tile = { id: hatch, width: 8, height: 8, patternUnits: "userSpaceOnUse" };
    const picture = drawn(
      "svg",
      { viewBox: `0 0 ${CHART.width} ${CHART.height}`, preserveAspectRatio: "none", role: "img" },
      drawn("defs", {}, drawn("pattern", tile, lines)),
      this.fastpath,
      this.fallback,
    );
    this.label = drawn("title");
    picture.prepend(this.label);
    this.top = element("span", { class: "gpuload-axis-top" });
    this.begin = element("span");
    this.end = element("span");
    this.root = element(
      "div",
      { class: "gpuload-chart" },
      element("div", { class: "gpuload-plot" }, picture, this.top),
      element("div", { class: "gpuload-axis" }, this.begin, this.end),
      element("div", { class: "gpuload-legend" }, swatch("fastpath"), "fastpath", swatch("fallback"), "fallback"),
    );
  }

  // `bins` has bytes per bin and path; those that ended before `since` seconds are left out.
  draw(bins, since) {
    const from = Math.min(Math.ceil(Math.max(since, 0) / bins.width), bins.fastpath.length);
    const fast = bins.fastpath.slice(from).map((bytes) => bytes / bins.width);
    const both = bins.fallback.slice(from).map((bytes, i) => bytes / bins.width + fast[i]);
    const most = Math.max(...both, 0);
    this.fastpath.setAttribute("d", band(fast, fast.map(() => 0), most));
    this.fallback.setAttribute("d", band(both, fast, most));
    this.top.textContent = both.length ? rateWords(most) : "";
    this.begin.textContent = both.length ? `${threeDigits(from * bins.width)} s` : "nothing yet";
    this.end.textContent = both.length ? `${threeDigits(bins.end)} s` : "";
    this.label.textContent = `bytes a second by path, at most ${rateWords(most)}`;
  }
}

// The area between two lines of steps, as an SVG path.
function band(upper, lower, most) {
  if (!upper.length || !most) return "";
  const step = CHART.width / upper.length;
  const y = (value) => (CHART.height * (1 - value / most)).toFixed(1);
  const x = (i) => (i * step).toFixed(1);
  const there = upper.map((value, i) => `L${x(i)} ${y(value)} L${x(i + 1)} ${y(value)}`);
  const back = lower.map((value, i) => `L${x(i + 1)} ${y(value)} L${x(i)} ${y(value)}`).reverse();
  return `M0 ${y(lower[0])} ${there.join(" ")} ${back.join(" ")} Z`;
}
