// Elements, numbers as words. Text goes into the page by textContent alone: names come from files.

const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children); // strings become text nodes
  return made;
}

function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function button(words, title, act) {
  const made = element("button", { type: "button", title }, words);
  made.addEventListener("click", act);
  return made;
}

function threeDigits(value) {
  if (!value) return "0";
  return value >= 999.5 ? Math.round(value).toLocaleString("en") : value.toPrecision(3);
}

function scaled(value, units) {
  let at = 0;
  while (at < units.length - 1 && Number(value.toPrecision(3)) >= 1000) {
    value /= 1000;
    at += 1;
  }
  return `${threeDigits(value)} ${units[at]}`;
}

const sizeWords = (bytes) => (bytes < 1000 ? `${Math.round(bytes)} B` : scaled(bytes / 1000, ["kB", "MB", "GB", "TB", "PB"]));
const rateWords = (rate) => `${sizeWords(rate)}/s`;
const durationWords = (seconds) => (seconds == null ? "-" : scaled(seconds * 1e6, ["µs", "ms", "s"]));
const exactly = (number) => number.toLocaleString("en");

function swatch(path) {
  return element("span", { class: `gpuload-swatch gpuload-${path}`, "aria-hidden": "true" });
}

// Hands `text` to the reader as a file, without leaving the page.
function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 0);
}

// A field of a CSV file; what a spreadsheet would take for a formula is kept from being one.
function csvField(value) {
  let text = value == null ? "" : String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
