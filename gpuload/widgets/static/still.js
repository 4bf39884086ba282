// A view that does not change by itself: the still page as the kernel made it, with a button for all there is to copy.

class StillView {
  constructor(state) {
    this.state = state;
    this.root = element("div", { class: "gpuload-live gpuload-stillness" });
    this.draw();
  }

  draw() {
    if (this.drawn === this.state.html || this.state.html === undefined) return;
    this.drawn = this.state.html;
    // The same HTML as that of the output: whoever made it has escaped what is not his.
    this.root.replaceChildren(document.createRange().createContextualFragment(this.drawn));
    const words = [...this.root.querySelectorAll(".gpuload-copy")];
    this.buttons = words.map((line) => {
      const made = button("Copy", `copy: ${line.textContent}`, () => this.copy(made, line));
      made.classList.add("gpuload-copier");
      (line.closest("code") ?? line).after(made);
      return made;
    });
  }

  async copy(pressed, line) {
    const done = await copyText(line.textContent);
    for (const each of this.buttons) each.textContent = "Copy";
    if (done) {
      pressed.textContent = "Copied";
    } else {
      getSelection().selectAllChildren(line);
      pressed.textContent = "Selected";
    }
  }
}

// Whether `text` is in the clipboard now. The modern way exists on https and localhost only.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { readonly: "", "aria-hidden": "true", class: "gpuload-unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export default () => {
  const state = { html: undefined };
  return widget(
    ({ html }) => {
      state.html = html;
    },
    () => new StillView(state),
  );
};
