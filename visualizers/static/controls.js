// The controls: what they look like and what they are called.

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
const JUMP_TO = [["admit finish preempt abort stall", "any event"], ["admit", "admitted"], ["finish abort", "ended"], ["preempt", "preempted"], ["stall", "stalled"]];
const HELP = "Drag on the picture to move the playhead; click a request to follow it, or an idle cell to ask why nobody is in it. Keys: Space plays and pauses, Left and Right step, Shift+Left and Shift+Right jump between events, "
  + "Home and End go to the ends, plus and minus zoom, Escape follows all requests, 1 to 6 show and hide views.";
const CONTROLS = `
<div class="te-bar">
  <button type="button" data-act="play"></button>
  <input type="range" min="0" value="0" data-testid="scrub" aria-label="Playhead">
  <output class="te-readout" data-testid="position"></output>
  <button type="button" data-act="engine" data-testid="engine" hidden>Pause the engine</button>
  <span class="te-options">${select("speed", "speed", SPEEDS.map((n) => `<option value="${n}">${n} iteration${n > 1 ? "s" : ""}/s</option>`).join(""))}</span>
  <button type="button" data-act="more" aria-expanded="false" title="Steps, follow, clock, zoom and views">more</button>
</div>
<div class="te-extra" hidden>
  <div class="te-bar te-options">
    <span class="te-buttons"><span class="te-name">step</span>
      ${button("previous", "previous", "Previous event (Shift+Left)")}${button("back", "back", "Step back (Left)")}
      ${button("forward", "forward", "Step forward (Right)")}${button("next", "next", "Next event (Shift+Right)")}
    </span>
    ${select("follow", "follow", "")}
    ${select("jump", "jump to", JUMP_TO.map(([kinds, text]) => `<option value="${kinds}">${text}</option>`).join(""))}
    ${select("clock", "clock", '<option value="iteration">iterations</option><option value="time">time</option>')}
    <span class="te-buttons"><span class="te-name">zoom</span>${button("out", "out", "Zoom out (minus)")}${button("in", "in", "Zoom in (plus)")}</span>
  </div>
  <div class="te-bar te-options" role="group" aria-label="Views"><span class="te-name">views</span><span class="te-buttons te-views"></span></div>
</div>`;
const FIGURES = [
  ["iteration", "iteration"], ["running", "running"], ["waiting", "waiting"], ["idle", "idle slot-steps so far"],
  ["padding", "padding rows so far"], ["tokens", "tokens out so far"],
];

// What the player can show of an engine, by name: what is on its button, and what it is made of.
const VIEWS = {
  slots: ["batch slots", (player, e) => [new Strip(player, e, slotTimeline)]],
  batch: ["batch", (player, e) => [new Strip(player, e, composition)]],
  requests: ["requests", (player, e) => [new Strip(player, e, lifecycles)]],
  memory: ["K/V memory", (player, e) => [new Strip(player, e, arenaOverTime), new Panel(player, e, arenaNow)]],
  text: ["text", (player, e) => [new TextStream(player, e)]],
  flat: ["flat batch", (player, e) => [new Panel(player, e, flatBatch)]],
};

function element(tag, name, text = "") {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  return made;
}

const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};
