// Where a model is shown. The notebook's output is plain HTML, which stays readable without a kernel; in a page where the
// model lives too, the living view takes the place of that still one. Whatever the page does with its outputs meanwhile
// (draws them anew, detaches cells that are scrolled away, shows one twice), the view follows.

function attachEverywhere(model, makeView) {
  const selector = `[data-gpuload="${model.get("place")}"]`;
  const views = new Map(); // place -> view
  let asked = false;

  function look() {
    asked = false;
    if (model.get("closed")) return; // the still view may have its place again
    const kept = [...views.keys()].filter((place) => !place.isConnected);
    for (const place of document.querySelectorAll(selector)) {
      if (views.has(place)) continue;
      // An output that was drawn anew is a new place: the view that lost its old one moves there as it is.
      const old = kept.shift();
      const view = old ? views.get(old) : makeView();
      if (old) views.delete(old);
      views.set(place, view);
      place.replaceChildren(view.root);
      view.shown?.();
    }
  }

  const observer = new MutationObserver(() => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(look);
  });
  observer.observe(document.body, { childList: true, subtree: true });
  look();
  return {
    views: () => views.values(),
    end() {
      observer.disconnect();
    },
  };
}
