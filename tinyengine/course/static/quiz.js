// A quiz: choose, check, read why. Colour never speaks alone, everything can be done with the keyboard, and what was
// checked is kept in the model, so that a notebook that is opened again shows it.

const element = (tag, className, html = "") => Object.assign(document.createElement(tag), { className, innerHTML: html });
let quizzes = 0; // radio buttons of two quizzes in one page must not share a name

function render({ model, el }) {
  const questions = model.get("questions"), root = element("div", "te-quiz"), id = `te-quiz-${++quizzes}`;
  const score = element("p", "te-score"), again = element("button", "te-again", "Start again");
  score.setAttribute("role", "status");
  // Arrows and letters mean something else in the notebook around us; Ctrl + S and its like are left to it.
  root.addEventListener("keydown", (event) => event.ctrlKey || event.metaKey || event.stopPropagation());
  root.append(...questions.map((question, n) => fieldset(question, n)), score, again);
  again.addEventListener("click", () => {
    root.querySelectorAll("input").forEach((input) => (input.checked = false));
    choose(() => -1);
    root.querySelector("input").focus();
  });
  const draw = () => {
    questions.forEach((question, n) => show(question, n, model.get("chosen")[n]));
    tell();
  };
  model.on("change:chosen", draw);
  el.append(root);
  draw();
  return () => model.off("change:chosen", draw);

  function choose(of) {
    model.set("chosen", model.get("chosen").map(of));
    model.save_changes();
  }

  function fieldset({ question, options }, n) {
    const box = element("fieldset", "te-question"), check = element("button", "te-check", "Check");
    const said = element("p", "te-said"); // read aloud when it changes
    said.setAttribute("role", "status");
    box.append(element("legend", "", `${n + 1}. ${question}`));
    options.forEach(({ text }, k) => {
      const row = element("div", "te-option"), label = element("label", "", `<input type="radio"> <span>${text}</span>`);
      Object.assign(label.firstChild, { name: `${id}-${n}`, value: k });
      row.append(label, element("p", "te-why"));
      box.append(row);
    });
    box.append(check, said);
    box.addEventListener("change", () => (check.disabled = false));
    check.addEventListener("click", () => {
      const picked = Number(box.querySelector("input:checked").value);
      choose((old, m) => (m === n ? picked : old));
    });
    return box;
  }

  function show({ options }, n, chosen) {
    const box = root.children[n], done = chosen >= 0, right = done && options[chosen].right;
    box.querySelectorAll(".te-option").forEach((row, k) => {
      const { why, right: good } = options[k], input = row.querySelector("input");
      if (done) input.checked = k === chosen;
      input.disabled = done;
      row.dataset.state = !done ? "" : good ? "right" : k === chosen ? "wrong" : "other";
      const mark = k === chosen ? (good ? "✓ Right: " : "✗ Not quite: ") : good ? "✓ The answer: " : "No: ";
      row.lastChild.innerHTML = done ? `<b>${mark}</b>${why}` : "";
    });
    const check = box.querySelector(".te-check");
    check.hidden = done;
    check.disabled = !box.querySelector("input:checked");
    box.lastChild.textContent = !done ? "" : right ? "Right." : "Not quite.";
  }

  function tell() {
    const chosen = model.get("chosen"), done = chosen.filter((k) => k >= 0).length;
    const right = chosen.filter((k, n) => k >= 0 && questions[n].options[k].right).length;
    again.hidden = done < questions.length;
    score.textContent = done < questions.length ? `${done} of ${questions.length} answered.` : `${right} of ${questions.length} right.`;
  }
}

export default { render };
