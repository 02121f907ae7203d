// The player: the playhead, and what the user does. anywidget calls the default export's render, the one-file page calls
// mount(element, text).

class Player extends Page {
  constructor(host, text) {
    super();
    Object.assign(this, { position: 0, playing: false, dragging: false, follow: null, zoom: 0, version: 0, from: 0, pending: 0, jumps: JUMP_TO[0][0] });
    this.load(text);
    this.speed = SPEEDS.find((speed) => speed >= this.longest / 25) ?? SPEEDS.at(-1);
    this.views = new Set(this.data.views);
    this.build(host);
    this.showPlaying();
    this.setClock(this.data.clock ?? "iteration");
    this.move(this.axis.begins.find((begins) => begins.length === this.longest)[this.data.iteration ?? 0] ?? 0);
    this.watch();
  }

  // New data, of the same run, which goes on, or of another one: the playhead stays where it is, or at the end if it was there.
  update(text) {
    const atEnd = this.position >= this.axis.last, kept = this.position;
    this.load(text);
    this.buildAll();
    if (this.follow >= this.labels.length) this.follow = null;
    this.setClock(this.axis.clock);
    this.move(atEnd && !this.playing ? this.axis.last : kept);
    this.restyle();
  }

  bind() {
    this.root.addEventListener("click", (event) => this.act(event.target.closest("button")?.dataset.act));
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.find("scrub").addEventListener("input", (event) => this.move(Number(event.target.value)));
    this.find("speed").addEventListener("change", (event) => (this.speed = Number(event.target.value)));
    this.find("clock").addEventListener("change", (event) => this.setClock(event.target.value));
    this.find("follow").addEventListener("change", ({ target }) => this.setFollow(target.value === "" ? null : +target.value));
    this.find("jump").addEventListener("change", (event) => this.setJumps(event.target.value));
    const under = (event) => this.drawables.find(({ canvas }) => canvas && canvas === event.target);
    this.sections.addEventListener("pointermove", (event) => this.drag(event) || this.hover(under(event), event));
    this.sections.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.sections.addEventListener("pointerdown", (event) => this.grab(under(event), event));
    this.sections.addEventListener("pointercancel", () => this.release());
    this.sections.addEventListener("pointerup", () => this.release());
    this.sections.addEventListener("click", (event) => this.pick(under(event), event));
  }

  // A horizontal movement on a strip drags the playhead; without one it is a click. (A finger that moves up or down scrolls the
  // page: the browser then cancels the pointer.)
  grab(drawable, event) {
    this.moved = false;
    this.grabbed = event.button === 0 && drawable instanceof Strip ? { drawable, x: event.clientX, id: event.pointerId } : null;
  }

  drag(event) {
    const { grabbed } = this;
    if (!grabbed || event.pointerId !== grabbed.id) return false;
    if (event.pointerType === "mouse" && !(event.buttons & 1)) return this.release();
    if (!this.dragging && Math.abs(event.clientX - grabbed.x) < 4) return false;
    if (!this.dragging) {
      this.pause();
      this.sections.setPointerCapture(event.pointerId);
      this.tip.hidden = true;
    }
    this.dragging = this.moved = true;
    const x = event.clientX - grabbed.drawable.canvas.getBoundingClientRect().left, value = this.from + (x - GUTTER) / this.scale;
    this.move(this.axis.clock === "time" ? value : Math.floor(value));
    return true;
  }

  release() {
    this.grabbed = null;
    if (this.dragging) this.request();
    this.dragging = false;
    return false;
  }

  act(name) {
    if (name?.startsWith("view ")) return this.toggle(name.slice(5));
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
      engine: () => this.pauseEngine?.(),
      more: () => this.showMore(),
    };
    acts[name]?.();
  }

  showMore() {
    const extra = this.root.querySelector(".te-extra"), button = this.root.querySelector('[data-act="more"]');
    extra.hidden = !extra.hidden;
    button.setAttribute("aria-expanded", !extra.hidden);
    setText(button, extra.hidden ? "more" : "less");
  }

  toggle(name) {
    if (!this.views.delete(name)) this.views.add(name);
    this.buildSections();
    this.drawLegend();
    this.resize();
  }

  key(event) {
    event.stopPropagation(); // a notebook around us has its own meaning for most keys
    const onButton = event.target.closest("button"), onSelect = event.target.closest("select");
    if (onSelect || event.ctrlKey || event.metaKey || event.altKey || (onButton && event.key === " ")) return;
    const act = {
      " ": "play", ArrowLeft: event.shiftKey ? "previous" : "back", ArrowRight: event.shiftKey ? "next" : "forward",
      Home: "first", End: "last", "+": "in", "=": "in", "-": "out", Escape: "all",
    }[event.key] ?? (Object.keys(VIEWS)[event.key - 1] && `view ${Object.keys(VIEWS)[event.key - 1]}`);
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
    this.request();
  }

  showPlaying() {
    const play = this.root.querySelector('[data-act="play"]'), title = this.playing ? "Pause (Space)" : "Play (Space)";
    play.innerHTML = icon(this.playing ? "pause" : "play") + (this.playing ? "Pause" : "Play");
    play.title = title;
    play.setAttribute("aria-label", title);
    for (const caption of this.root.querySelectorAll(".te-caption")) {
      caption.setAttribute("aria-live", this.playing ? "off" : "polite"); // a screen reader cannot keep up with a film
    }
  }

  jump(position) {
    if (position === undefined) return;
    if (this.playing) this.pause();
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
    this.find("clock").value = clock;
    this.setFollow(this.follow);
  }

  setFollow(request) {
    this.follow = request;
    this.find("follow").value = request ?? "";
    this.setJumps(this.jumps);
    this.repaint();
  }

  // The iterations at which the jump buttons stop.
  setJumps(kinds) {
    this.jumps = kinds;
    const mine = (kind, who) => kinds.split(" ").includes(kind) && (this.follow === null || who === this.follow);
    const found = this.engines.flatMap((engine, e) => [
      ...engine.events.filter(([, kind, who]) => mine(kind, who)).map(([i]) => i),
      ...engine.stalls.filter(([, , , all]) => all.some((who) => mine("stall", who))).map(([, end]) => end),
    ].map((i) => this.axis.begins[e][Math.min(i, engine.count - 1)]));
    this.events = [...new Set(found)].filter((value) => value !== undefined).sort((a, b) => a - b);
  }

  setZoom(zoom) {
    this.zoom = zoom;
    this.repaint();
  }

  at(drawable, event) {
    const box = drawable.canvas.getBoundingClientRect();
    return drawable.hit(event.clientX - box.left, event.clientY - box.top);
  }

  pick(drawable, event) {
    const found = drawable && !this.moved && this.at(drawable, event);
    if (!found) return;
    if (found.row < 0) return this.jump(this.axis.begins[drawable.e][found.i]);
    const request = drawable.pick(found);
    if (request === null && drawable.why?.(found)) return this.ask(drawable, found, event);
    this.setFollow(request === this.follow ? null : request);
    if (event.pointerType === "touch") this.hover(drawable, event);
  }

  // Why is nobody in here? The answer stays in the caption, as long as the playhead is there.
  ask(drawable, { row, i }, event) {
    this.jump(this.axis.begins[drawable.e][i]);
    this.asked = { e: drawable.e, row, i, said: `batch slot ${row} is idle: ${drawable.why({ row, i })}` };
    this.request();
    this.hover(drawable, event);
  }

  hover(drawable, event) {
    const found = drawable && this.at(drawable, event), lines = found && found.row >= 0 && drawable.tip(found);
    this.tip.hidden = !lines;
    if (!lines) return;
    this.tip.replaceChildren(...lines.map((text) => element("div", "", text)));
    const box = this.root.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    this.tip.style.left = `${Math.max(4, Math.min(x + 14, box.width - this.tip.offsetWidth - 6))}px`;
    const below = y + 18 + this.tip.offsetHeight < box.height;
    this.tip.style.top = `${below ? y + 18 : Math.max(2, y - 10 - this.tip.offsetHeight)}px`;
  }
}

// The button that pauses a running engine: only the kernel can do that.
function bindEngine(player, model) {
  const button = player.find("engine");
  const show = () => {
    button.hidden = !model.get("running");
    setText(button, model.get("paused") ? "Resume the engine" : "Pause the engine");
  };
  player.pauseEngine = () => {
    model.set("paused", !model.get("paused"));
    model.save_changes();
  };
  model.on("change:running", show);
  model.on("change:paused", show);
  show();
  if (model.get("running") && player.data.iteration === null) player.move(player.axis.last); // the present
}

// The text in a page's data: JSON, gzip, base64.
export function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

export function mount(host, text) {
  return new Player(host, text);
}

export default {
  render({ model, el }) {
    const player = mount(el, model.get("data")), update = () => player.update(model.get("data"));
    bindEngine(player, model);
    model.on("change:data", update);
    return () => (model.off("change:data", update), player.destroy());
  },
};
