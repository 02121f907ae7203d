// "Copy as code": to the clipboard where the page may, and into sight, selected, in any case.
export default {
  render({ model, el }) {
    const button = el.appendChild(document.createElement("button")), shown = el.appendChild(document.createElement("pre"));
    button.type = "button";
    button.className = "jupyter-button widget-button te-copy";
    button.textContent = "Copy as code";
    shown.className = "te-code";
    shown.hidden = true;
    shown.dataset.testid = "code";
    const fill = () => (shown.textContent = model.get("code"));
    button.addEventListener("click", async () => {
      shown.hidden = false;
      getSelection().selectAllChildren(shown);
      const copied = await navigator.clipboard?.writeText(model.get("code")).then(() => true, () => false);
      button.textContent = copied ? "Copied" : "Copy as code: press Ctrl+C";
      setTimeout(() => (button.textContent = "Copy as code"), 2000);
    });
    model.on("change:code", fill);
    fill();
    return () => model.off("change:code", fill);
  },
};
