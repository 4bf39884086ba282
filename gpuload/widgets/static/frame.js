// What all widgets do alike: take states as they come, draw once a frame at most, and live wherever they are shown.
//   take(state)  keeps what the kernel sent; false: nothing of it can be used yet
//   view()       makes one view: `root`, and `draw()`
function widget(take, view) {
  const views = new Set();
  let places = null;
  let asked = false;
  let newest = -1;

  function drawSoon() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      for (const shown of [...views, ...(places?.views() ?? [])]) shown.draw();
    });
  }

  function accept(state) {
    // An older one may come late: the state that was saved last, beside the messages that came since.
    if (state.number === undefined || state.number < newest || take(state) === false) return;
    newest = state.number;
    drawSoon();
  }

  return {
    initialize({ model }) {
      accept(model.get("snapshot"));
      model.on("change:snapshot", () => accept(model.get("snapshot")));
      model.on("msg:custom", accept);
      places = attachEverywhere(model, view);
      model.send("hello"); // answered with the newest state when the kernel is free
      return () => places.end();
    },
    render({ el }) {
      const made = view();
      views.add(made);
      el.append(made.root);
      return () => views.delete(made);
    },
  };
}
