// What charts say of the mark that is pointed at, or reached by the keyboard.
for (const chart of document.querySelectorAll(".chart")) {
  const caption = chart.querySelector("figcaption"), before = caption.textContent;
  const tell = event => {
    const mark = event.target.closest("[data-tip]");
    caption.textContent = mark ? mark.dataset.tip : before;
  };
  for (const name of ["pointerover", "focusin", "click"]) chart.addEventListener(name, tell);
  chart.addEventListener("pointerleave", () => { caption.textContent = before; });
}
