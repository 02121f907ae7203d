// The page: what stands in it, and how it is drawn anew when the playhead, the size or the colours change.

class Page {
  load(text) {
    this.data = JSON.parse(text);
    this.labels = this.data.requests.map((request) => request[1]);
    this.asked = null;
    this.engines = this.data.engines.map((sent) => new Engine(sent, this.data.texts, this.data.engines.length > 2));
    this.longest = Math.max(...this.engines.map((engine) => engine.count));
    this.prompts = this.data.requests.map((_, number) => {
      const known = this.engines.map((engine) => engine.records[number]?.[6]).find(Boolean);
      return known ? plain(known).trim() : "";
    });
  }

  label(request) {
    return this.labels[request];
  }

  find(name) {
    return this.root.querySelector(`[data-testid="${name}"]`);
  }

  build(host) {
    this.root = host.appendChild(document.createElement("div"));
    this.root.className = "te-player";
    this.root.player = this; // for tests and benchmarks
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "group");
    this.root.dataset.lmSuppressShortcuts = "true"; // else JupyterLab takes "b" for "insert a cell below"
    this.root.innerHTML = CONTROLS;
    this.find("scrub").title = HELP;
    this.find("speed").value = this.speed;
    this.root.querySelector(".te-views").append(...Object.entries(VIEWS).map(([name, [title]], n) => {
      const toggle = element("button", "", title);
      toggle.type = "button";
      toggle.dataset.act = `view ${name}`;
      toggle.title = `Show or hide ${title}, beside the others (${n + 1})`;
      return toggle;
    }));
    this.sections = this.root.appendChild(element("div", "te-engines"));
    this.legend = this.root.appendChild(element("div", "te-legend"));
    this.figures = this.root.appendChild(element("table", "te-figures"));
    this.tip = this.root.appendChild(element("div", "te-tip"));
    this.tip.hidden = true;
    // While it plays, what is scrolled out of sight is not drawn. What comes into sight is drawn anew: a browser may drop what
    // was drawn on a canvas out of sight, and a notebook takes cells out of the page in which the colours change.
    this.sight = new IntersectionObserver((entries) => {
      const hidden = entries.filter(({ target, isIntersecting }) => isIntersecting && !this.inSight.has(target)).length;
      for (const { target, isIntersecting } of entries) isIntersecting ? this.inSight.add(target) : this.inSight.delete(target);
      if (hidden) this.restyle();
    });
    this.buildAll();
    this.bind();
  }

  // What depends on the run: it may be another one after an update.
  buildAll() {
    const follow = this.find("follow"), name = (label, number) => [label, briefPrompt(this.prompts[number])].filter(Boolean).join(": ");
    this.root.setAttribute("aria-label", `Timeline of ${this.engines.map((e) => e.name).join(", ")}. ${HELP}`);
    follow.replaceChildren(new Option("all", ""), ...this.labels.map((label, number) => new Option(name(label, number), number)));
    this.buildFigures();
    this.buildSections();
  }

  // One section per engine, with the views that are switched on.
  buildSections() {
    this.drawables = [];
    this.sections.replaceChildren(...this.engines.map((engine, e) => this.buildEngine(engine, e)));
    this.strips = this.drawables.filter((drawable) => drawable instanceof Strip);
    for (const name of Object.keys(VIEWS)) {
      this.root.querySelector(`[data-act="view ${name}"]`).setAttribute("aria-pressed", this.views.has(name));
    }
    this.readout = null;
    this.sight.disconnect();
    this.inSight = new Set(this.drawables.map((drawable) => drawable.node));
    this.inSight.forEach((node) => this.sight.observe(node));
  }

  buildFigures() {
    // What a trace does not tell is not counted as 0.
    const known = FIGURES.filter(([name]) => name !== "padding" || this.engines.some((engine) => engine.padding_known));
    this.figures.replaceChildren();
    this.figures.createTHead().insertRow().append(
      element("th", "", "at the playhead"), ...known.map(([, title]) => element("th", "", title)));
    for (const engine of this.engines) {
      const row = this.figures.createTBody().insertRow();
      row.dataset.engine = engine.name;
      row.append(element("th", "", engine.name));
      for (const [name] of known) row.insertCell().dataset.testid = name;
    }
  }

  buildEngine(engine, e) {
    const section = element("section", "te-engine"), caption = element("p", "te-caption");
    section.dataset.engine = engine.name;
    caption.appendChild(element("span", "")).append(
      element("b", "", engine.name), element("span", "te-words"), element("span", "te-note"));
    caption.querySelector(".te-words").dataset.testid = "caption";
    caption.querySelector(".te-note").dataset.testid = "note";
    caption.setAttribute("aria-live", this.playing ? "off" : "polite"); // a screen reader cannot keep up with a film
    section.append(caption);
    for (const [name, [title, make]] of Object.entries(VIEWS)) {
      if (!this.views.has(name)) continue;
      const view = section.appendChild(element("div", "te-view")), drawables = make(this, e);
      view.dataset.view = name;
      if (this.views.size > 1) view.append(element("div", "te-title", title));
      view.append(...drawables.map((drawable) => drawable.node));
      this.drawables.push(...drawables);
    }
    return section;
  }

  drawLegend() {
    this.legend.replaceChildren(...this.legendEntries().map(([text, paint]) => {
      const item = element("span", ""), canvas = element("canvas", ""), dpr = devicePixelRatio;
      [canvas.width, canvas.height] = [22 * dpr, 14 * dpr];
      const g = canvas.getContext("2d");
      g.scale(dpr, dpr);
      paint(g, this.theme);
      canvas.setAttribute("aria-hidden", "true");
      item.append(canvas, text);
      return item;
    }));
  }

  // Only what is shown and what this run has: a legend of things that cannot be found is a riddle.
  legendEntries() {
    const entries = this.drawables.filter((drawable) => drawable.e === 0).flatMap(({ view }) => view.legend(this));
    return [...new Map(entries.map((entry) => [entry[0], entry])).values()];
  }

  watch() {
    const restyle = () => this.restyle(), scheme = matchMedia("(prefers-color-scheme: dark)");
    // Jupyter puts the element into the page after render(): it has neither size nor colours until then.
    const sized = new ResizeObserver(restyle), themed = new MutationObserver(restyle);
    sized.observe(this.root);
    themed.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
    scheme.addEventListener("change", restyle);
    this.unwatch = () => (sized.disconnect(), themed.disconnect(), scheme.removeEventListener("change", restyle));
  }

  restyle() {
    if (!this.root.isConnected) return;
    this.root.dataset.theme = isDark(this.root) ? "dark" : "light";
    this.theme = themeOf(this.root, this.data.palette);
    this.drawLegend();
    this.resize();
  }

  resize() {
    const width = this.sections.clientWidth;
    if (!width || !this.theme) return; // not in a page yet, or in a folded output
    this.width = width;
    this.dpr = devicePixelRatio;
    this.drawables.forEach((drawable) => drawable.resize(width, this.dpr));
    this.repaint();
  }

  repaint() {
    this.version += 1; // every tile is out of date
    this.request();
  }

  request() {
    this.pending ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.pending = 0;
    if (!this.width) return;
    this.place();
    for (const drawable of this.drawables) {
      if (!this.playing || this.inSight.has(drawable.node)) drawable.draw(this.from, this.plot, this.dpr);
    }
    this.read();
  }

  // The window: `scale` px per unit of the axis, from axis value `from` on; the playhead stays in its right half.
  place() {
    const { axis } = this;
    this.plot = this.width - GUTTER - 2;
    const whole = this.plot / (axis.length || 1), widest = Math.max(whole, WIDEST / axis.unit);
    const plain = Math.min(Math.max(whole, NARROWEST / axis.unit), WIDEST / axis.unit);
    const steps = Math.ceil(Math.log2(widest / plain)), back = Math.ceil(Math.log2(plain / Math.min(whole, plain)));
    this.zoom = Math.min(Math.max(this.zoom, -back), steps);
    this.scale = Math.min(Math.max(plain * 2 ** this.zoom, Math.min(whole, plain)), widest);
    // The window stays where it is while the playhead is well inside; while it is dragged, as long as it is inside at all.
    const shown = this.plot / this.scale, [low, high] = this.dragging ? [0, 1 - (1.5 * axis.unit) / shown] : [0.2, 0.65];
    const from = Math.min(clamp(this.from, this.position - high * shown, this.position - low * shown), axis.length - shown);
    this.from = Math.round(Math.max(0, from) * this.scale) / this.scale;
    this.root.querySelector('[data-act="in"]').disabled = this.zoom === steps;
    this.root.querySelector('[data-act="out"]').disabled = this.zoom === -back;
  }

  read() {
    const now = this.engines.map((_, e) => this.axis.at(e, this.position));
    const key = `${now} ${this.follow} ${this.asked?.e} ${this.asked?.row}`, inTime = this.axis.clock === "time";
    const scrub = this.find("scrub"), where = this.longest === 0 ? "no iterations"
      : inTime ? seconds(this.position, this.axis.unit) : `iteration ${Math.max(...now) + 1}`;
    if (document.activeElement !== scrub || Number(scrub.value) !== this.position) scrub.value = this.position;
    scrub.setAttribute("aria-valuetext", where);
    setText(this.find("position"), where);
    if (key === this.readout) return;
    this.readout = key;
    this.engines.forEach((engine, e) => this.readEngine(engine, now[e]));
  }

  readEngine(engine, i) {
    const name = CSS.escape(engine.name), inside = (part) => this.root.querySelector(`${part}[data-engine="${name}"]`);
    for (const [figure, value] of Object.entries(engine.figures(i))) {
      const cell = inside("tr").querySelector(`[data-testid="${figure}"]`);
      if (cell) setText(cell, String(value));
    }
    inside("tr").querySelector('[data-testid="waiting"]').title = i < 0 ? "" : engine.queue(i).slice(0, 12).map((who) => this.label(who)).join(", ");
    const section = inside("section"), words = section.querySelector(".te-words"), note = section.querySelector(".te-note");
    setText(words, i >= 0 ? engine.captions[i] : engine.count ? "before the first iteration" : "no iteration ran");
    const { asked } = this, answer = asked && this.engines[asked.e] === engine && asked.i === i ? asked.said : "";
    setText(note, answer || (this.follow === null ? "" : `following ${this.label(this.follow)}: ${this.fate(engine, i)}`));
  }

  // Where the followed request is at iteration i, in words.
  fate(engine, i) {
    const run = engine.runOf(this.follow, i);
    if (!run) return this.fateOf(engine, this.follow, i);
    return slotTimeline.tip(this, engine, run.row, i).slice(0, 3).map((text, n) => (n ? text : this.data.phases[run.phase])).join(", ");
  }

  // Where a request is that does not run.
  fateOf(engine, request, i) {
    const place = i >= 0 ? engine.queue(i).indexOf(request) : -1;
    if (place >= 0) return `waiting, place ${place + 1} of the queue`;
    const gone = engine.events.find(([at, kind, who]) => who === request && at <= i && (kind === "finish" || kind === "abort"));
    return gone ? `${gone[1] === "finish" ? "finished" : "aborted"} in iteration ${gone[0] + 1}` : "not here";
  }

  destroy() {
    this.playing = false;
    cancelAnimationFrame(this.ticking);
    cancelAnimationFrame(this.pending);
    this.unwatch();
    this.sight.disconnect();
    this.root.remove();
  }
}
