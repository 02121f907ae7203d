// Part 4 of 4 of the player: the playhead, the controls and the readouts. anywidget calls the default export's render,
// the one-file page calls mount(element, text).

const NARROWEST = 3, WIDEST = 96; // px per iteration: below, the window scrolls; above, cells only waste space
const SPEEDS = [1, 2, 5, 10, 20, 50, 100, 200]; // iterations per second
const ICONS = {
  play: "M4 2l10 6-10 6z", pause: "M4 2h3v12H4zM9 2h3v12H9z",
  back: "M3 2h2v12H3zM13 2v12L6 8z", forward: "M11 2h2v12h-2zM3 2v12l7-6z",
  previous: "M8 2v12L1 8zM15 2v12L8 8z", next: "M1 2v12l7-6zM8 2v12l7-6z",
  out: "M2 7h12v2H2z", in: "M2 7h12v2H2zM7 2h2v12H7z",
};

const icon = (name) => `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
const button = (act, name, title) =>
  `<button type="button" data-act="${act}" title="${title}" aria-label="${title}">${icon(name)}</button>`;
const select = (name, text, options = "") =>
  `<label>${text}<select data-testid="${name}" aria-label="${text}">${options}</select></label>`;
const HELP = "Keys: Space plays and pauses, Left and Right step, Shift+Left and Shift+Right jump between events, "
  + "Home and End go to the ends, plus and minus zoom, Escape follows all requests.";
const CONTROLS = `
<div class="te-bar">
  <span class="te-buttons">
    ${button("previous", "previous", "Previous event (Shift+Left)")}${button("back", "back", "Step back (Left)")}
    ${button("play", "play", "Play (Space)")}
    ${button("forward", "forward", "Step forward (Right)")}${button("next", "next", "Next event (Shift+Right)")}
  </span>
  <input type="range" min="0" value="0" data-testid="scrub" aria-label="Playhead">
  <output class="te-readout" data-testid="position"></output>
</div>
<div class="te-bar te-options">
  ${select("speed", "speed", SPEEDS.map((n) => `<option value="${n}">${n} iteration${n > 1 ? "s" : ""}/s</option>`).join(""))}
  ${select("follow", "follow", '<option value="">all</option>')}
  ${select("clock", "clock", '<option value="iteration">iterations</option><option value="time">time</option>')}
  <span class="te-buttons"><span class="te-name">zoom</span>${button("out", "out", "Zoom out (minus)")}${button("in", "in", "Zoom in (plus)")}</span>
</div>`;
const FIGURES = [
  ["iteration", "iteration"], ["running", "running"], ["waiting", "waiting"], ["idle", "idle slot-steps so far"],
  ["padding", "padding rows so far"], ["tokens", "tokens out so far"],
];

class Player {
  constructor(host, text) {
    this.data = JSON.parse(text);
    this.labels = this.data.requests.map((request) => request[1]);
    this.engines = this.data.engines.map((sent) => new Engine(sent));
    this.longest = Math.max(...this.engines.map((engine) => engine.count));
    Object.assign(this, { position: 0, playing: false, follow: null, zoom: 0, version: 0, from: 0, pending: 0 });
    this.speed = SPEEDS.find((speed) => speed >= this.longest / 25) ?? SPEEDS.at(-1);
    this.strips = this.engines.flatMap((_, e) => VIEWS.map((view) => new Strip(this, e, view)));
    this.build(host);
    this.setClock("iteration");
    this.move(this.axis.last); // before anybody presses play, the whole run is there to be read
    this.watch();
  }

  label(request) {
    return this.labels[request];
  }

  find(name) {
    return this.root.querySelector(`[data-testid="${name}"]`);
  }

  // ---- page

  build(host) {
    this.root = host.appendChild(document.createElement("div"));
    this.root.className = "te-player";
    this.root.player = this; // for tests and benchmarks
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", `Slot timeline of ${this.engines.map((e) => e.name).join(", ")}. ${HELP}`);
    this.root.dataset.lmSuppressShortcuts = "true"; // else JupyterLab takes "b" for "insert a cell below"
    this.root.innerHTML = CONTROLS;
    this.find("scrub").title = HELP;
    this.find("speed").value = this.speed;
    this.labels.forEach((label, number) => this.find("follow").add(new Option(label, number)));
    this.root.append(this.buildFigures(), ...this.engines.map((engine, e) => this.buildEngine(engine, e)));
    this.legend = this.root.appendChild(element("div", "te-legend"));
    this.tip = this.root.appendChild(element("div", "te-tip"));
    this.tip.hidden = true;
    this.bind();
  }

  buildFigures() {
    const table = element("table", "te-figures"), head = table.createTHead().insertRow();
    head.append(element("th", "", "at the playhead"), ...FIGURES.map(([, title]) => element("th", "", title)));
    for (const engine of this.engines) {
      const row = table.createTBody().insertRow();
      row.dataset.engine = engine.name;
      row.append(element("th", "", engine.name));
      for (const [name] of FIGURES) row.insertCell().dataset.testid = name;
    }
    return table;
  }

  buildEngine(engine, e) {
    const section = element("section", "te-engine"), caption = element("p", "te-caption");
    section.dataset.engine = engine.name;
    caption.appendChild(element("span", "")).append(
      element("b", "", engine.name), element("span", "te-words"), element("span", "te-note"));
    caption.querySelector(".te-words").dataset.testid = "caption";
    caption.querySelector(".te-note").dataset.testid = "note";
    section.append(caption, ...this.strips.filter((strip) => strip.e === e).map((strip) => strip.canvas));
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

  // Only what this run has: a legend of things that cannot be found is a riddle.
  legendEntries() {
    const used = new Set(this.engines.flatMap((engine) => engine.runs.map((run) => run.phase)));
    const phases = this.data.phases.map((phase) => [phase, swatch(phase)]).filter((_, number) => used.has(number));
    return phases.concat(LEGEND.filter(([, , has]) => !has || this.engines.some(has)));
  }

  // ---- what the user does

  bind() {
    this.root.addEventListener("click", (event) => this.act(event.target.closest("button")?.dataset.act));
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.find("scrub").addEventListener("input", (event) => this.move(Number(event.target.value)));
    this.find("speed").addEventListener("change", (event) => (this.speed = Number(event.target.value)));
    this.find("clock").addEventListener("change", (event) => this.setClock(event.target.value));
    this.find("follow").addEventListener("change", ({ target }) => this.setFollow(target.value === "" ? null : +target.value));
    for (const strip of this.strips) {
      strip.canvas.addEventListener("pointermove", (event) => this.hover(strip, event));
      strip.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
      strip.canvas.addEventListener("click", (event) => this.pick(strip, event));
    }
  }

  act(name) {
    const acts = {
      play: () => (this.playing ? this.pause() : this.play()),
      back: () => this.jump(this.axis.near(this.position, -1)),
      forward: () => this.jump(this.axis.near(this.position, 1)),
      previous: () => this.jump(this.axis.near(this.position, -1, this.events)),
      next: () => this.jump(this.axis.near(this.position, 1, this.events)),
      in: () => this.setZoom(this.zoom + 1),
      out: () => this.setZoom(this.zoom - 1),
      first: () => this.jump(0),
      last: () => this.jump(this.axis.last),
      all: () => this.setFollow(null),
    };
    acts[name]?.();
  }

  key(event) {
    event.stopPropagation(); // a notebook around us has its own meaning for most keys
    const onButton = event.target.closest("button"), onSelect = event.target.closest("select");
    if (onSelect || event.ctrlKey || event.metaKey || event.altKey || (onButton && event.key === " ")) return;
    const act = {
      " ": "play", ArrowLeft: event.shiftKey ? "previous" : "back", ArrowRight: event.shiftKey ? "next" : "forward",
      Home: "first", End: "last", "+": "in", "=": "in", "-": "out", Escape: "all",
    }[event.key];
    if (!act) return;
    event.preventDefault();
    this.act(act);
  }

  play() {
    if (!this.longest) return;
    if (this.position >= this.axis.last) this.move(0);
    this.playing = true;
    let before = performance.now();
    const tick = (now) => {
      if (!this.playing) return;
      this.move(this.position + ((now - before) / 1000) * this.speed * this.axis.unit);
      before = now;
      if (this.position >= this.axis.last) return this.pause();
      this.ticking = requestAnimationFrame(tick);
    };
    this.ticking = requestAnimationFrame(tick);
    this.showPlaying();
  }

  pause() {
    this.playing = false;
    this.showPlaying();
  }

  showPlaying() {
    const play = this.root.querySelector('[data-act="play"]'), title = this.playing ? "Pause (Space)" : "Play (Space)";
    play.innerHTML = icon(this.playing ? "pause" : "play");
    play.title = title;
    play.setAttribute("aria-label", title);
    for (const caption of this.root.querySelectorAll(".te-caption")) {
      caption.setAttribute("aria-live", this.playing ? "off" : "polite"); // a screen reader cannot keep up with a film
    }
  }

  jump(position) {
    if (position === undefined) return;
    this.pause();
    this.move(position);
  }

  move(position) {
    this.position = Math.min(Math.max(position, 0), this.axis.last);
    this.request();
  }

  setClock(clock) {
    const kept = this.axis ? Math.max(0, this.axis.at(0, this.position)) : 0;
    this.axis = new Axis(this.engines, clock);
    this.position = this.axis.begins[0][kept] ?? 0;
    const scrub = this.find("scrub");
    scrub.step = clock === "iteration" ? 1 : "any";
    scrub.max = this.axis.last;
    this.setFollow(this.follow);
  }

  setFollow(request) {
    this.follow = request;
    this.find("follow").value = request ?? "";
    const found = this.engines.flatMap((engine, e) => engine.events
      .filter(([, kind, who]) => JUMPS.includes(kind) && (request === null || who === request))
      .map(([iteration]) => this.axis.begins[e][Math.min(iteration, engine.count - 1)]));
    this.events = [...new Set(found)].filter((value) => value !== undefined).sort((a, b) => a - b);
    this.repaint();
  }

  setZoom(zoom) {
    this.zoom = zoom;
    this.repaint();
  }

  at(strip, event) {
    const box = strip.canvas.getBoundingClientRect();
    return strip.hit(event.clientX - box.left, event.clientY - box.top);
  }

  pick(strip, event) {
    const found = this.at(strip, event);
    if (!found) return;
    if (found.row < 0) return this.jump(this.axis.begins[strip.e][found.i]);
    const request = strip.engine.run(found.row, found.i)?.request ?? null;
    this.setFollow(request === this.follow ? null : request);
  }

  hover(strip, event) {
    const found = this.at(strip, event), inside = found && found.row >= 0;
    this.tip.hidden = !inside;
    if (!inside) return;
    this.tip.replaceChildren(...strip.view.tip(this, strip.engine, found.row, found.i).map((text) => element("div", "", text)));
    const box = this.root.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    this.tip.style.left = `${Math.max(4, Math.min(x + 14, box.width - this.tip.offsetWidth - 6))}px`;
    const below = y + 18 + this.tip.offsetHeight < box.height;
    this.tip.style.top = `${below ? y + 18 : Math.max(2, y - 10 - this.tip.offsetHeight)}px`;
  }

  // ---- what is drawn

  watch() {
    const restyle = () => this.restyle(), scheme = matchMedia("(prefers-color-scheme: dark)");
    // Jupyter puts the element into the page after render(): it has neither size nor colours until then.
    const sized = new ResizeObserver(() => (this.theme ? this.resize() : this.restyle())), themed = new MutationObserver(restyle);
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
    const width = this.strips[0].canvas.parentElement.clientWidth;
    if (!width || !this.theme) return; // not in a page yet, or in a folded output
    this.width = width;
    this.dpr = devicePixelRatio;
    this.strips.forEach((strip) => strip.resize(width, this.dpr));
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
    this.strips.forEach((strip) => strip.draw(this.from, this.plot, this.dpr));
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
    const shown = this.plot / this.scale, from = Math.min(this.position - 0.65 * shown, axis.length - shown);
    this.from = Math.round(Math.max(0, from) * this.scale) / this.scale;
    this.root.querySelector('[data-act="in"]').disabled = this.zoom === steps;
    this.root.querySelector('[data-act="out"]').disabled = this.zoom === -back;
  }

  read() {
    const now = this.engines.map((_, e) => this.axis.at(e, this.position));
    const key = `${now} ${this.follow}`, inTime = this.axis.clock === "time";
    const scrub = this.find("scrub"), where = this.longest === 0 ? "no iterations"
      : inTime ? seconds(this.position, this.axis.unit) : `iteration ${Math.max(...now)}`;
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
      setText(inside("tr").querySelector(`[data-testid="${figure}"]`), String(value));
    }
    const section = inside("section"), words = section.querySelector(".te-words"), note = section.querySelector(".te-note");
    setText(words, i >= 0 ? engine.captions[i] : engine.count ? "before the first iteration" : "no iteration ran");
    setText(note, this.follow === null ? "" : `following ${this.label(this.follow)}: ${this.fate(engine, i)}`);
  }

  // Where the followed request is at iteration i, in words.
  fate(engine, i) {
    const run = engine.runs.find((run) => run.request === this.follow && run.first <= i && i < run.end);
    if (run) return slotTimeline.tip(this, engine, run.row, i).slice(0, 3).map((text, n) => (n ? text : this.data.phases[run.phase])).join(", ");
    const place = i >= 0 ? engine.queue(i).indexOf(this.follow) : -1;
    if (place >= 0) return `waiting, place ${place + 1} of the queue`;
    const gone = engine.events.find(([at, kind, who]) => who === this.follow && at <= i && (kind === "finish" || kind === "abort"));
    return gone ? `${gone[1] === "finish" ? "finished" : "aborted"} at iteration ${gone[0]}` : "not here";
  }

  destroy() {
    this.playing = false;
    cancelAnimationFrame(this.ticking);
    cancelAnimationFrame(this.pending);
    this.unwatch();
    this.root.remove();
  }
}

function element(tag, name, text = "") {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  return made;
}

const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

export function mount(host, text) {
  return new Player(host, text);
}

export default {
  render({ model, el }) {
    const player = mount(el, model.get("data"));
    return () => player.destroy();
  },
};
