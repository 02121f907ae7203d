// Colours, hatching, words and small drawing tools.

// A hue comes again after seven requests: the next seven have a line along the bottom of their cells, the seven after them two.
const LINES = 3;
const linesOf = (theme, request) => Math.min(LINES, Math.floor(request / theme.hues.length));

const GUTTER = 72; // px left of the cells, for the names of the rows
const LANES = 27, IN = 6, OUT = 19; // px above the cells, for the marks of events
const TICKS = 18; // px below the cells, for the numbers of the iterations
const FUTURE = 0.4, UNFOLLOWED = 0.2; // opacity

function mix(a, b, share) {
  const part = (colour, n) => parseInt(colour.slice(1 + 2 * n, 3 + 2 * n), 16);
  return "#" + [0, 1, 2].map((n) =>
    Math.round(part(a, n) * (1 - share) + part(b, n) * share).toString(16).padStart(2, "0")).join("");
}

function isDark(element) {
  const { jpThemeLight } = document.body.dataset; // JupyterLab says so; its colours arrive a little later
  if (jpThemeLight !== undefined) return jpThemeLight === "false";
  for (const name of ["--jp-layout-color0", "--vscode-editor-background"]) {
    if (!getComputedStyle(element).getPropertyValue(name)) continue;
    const probe = element.appendChild(document.createElement("i"));
    probe.style.color = `var(${name})`; // the browser turns any colour notation into rgb()
    const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
    probe.remove();
    return 0.2126 * r + 0.7152 * g + 0.0722 * b < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function themeOf(root, palette) {
  const style = getComputedStyle(root);
  const theme = Object.fromEntries(
    ["bg", "fg", "dim", "grid", "idle", "accent"].map((name) => [name, style.getPropertyValue(`--te-${name}`).trim()]));
  theme.font = style.fontFamily;
  theme.hues = palette.map((full) => ({
    full, pale: mix(full, theme.bg, 0.66), edge: mix(full, theme.fg, 0.3), line: mix(full, theme.bg, 0.75),
    mid: mix(full, theme.bg, 0.4), wash: mix(full, theme.bg, 0.9),
  }));
  theme.grey = { full: theme.bg, line: theme.idle };
  theme.patterns = new Map();
  return theme;
}

// Hatching by phase: / prefill, \ chunk, x recompute. Decode has none.
function hatch(theme, hue, phase) {
  const key = `${hue.full} ${hue.line} ${phase}`;
  if (!theme.patterns.has(key)) {
    const size = 6, sharp = 4, tile = new OffscreenCanvas(size * sharp, size * sharp), g = tile.getContext("2d");
    g.scale(sharp, sharp);
    g.fillStyle = hue.full;
    g.fillRect(0, 0, size, size);
    g.strokeStyle = hue.line;
    g.lineWidth = 1.3;
    for (const shift of [-size, 0, size]) {
      if (phase !== "chunk") line(g, shift - 1, size + 1, shift + size + 1, -1);
      if (phase !== "prefill") line(g, shift - 1, -1, shift + size + 1, size + 1);
    }
    const pattern = g.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / sharp));
    theme.patterns.set(key, pattern);
  }
  return theme.patterns.get(key);
}

function line(g, x0, y0, x1, y1) {
  g.beginPath();
  g.moveTo(x0, y0);
  g.lineTo(x1, y1);
  g.stroke();
}

function underline(g, theme, request, left, bottom, width) {
  const lines = linesOf(theme, request);
  g.fillStyle = theme.hues[request % theme.hues.length].edge;
  for (let n = 0; n < lines; n++) g.fillRect(left, bottom - 6 - 4 * n, width, 2);
}

// The mark of an event, `size` px from its centre to its edge; a mere tick where there is no room for a shape.
function mark(g, kind, x, y, theme, size = 3.5) {
  const loss = kind === "preempt" || kind === "abort";
  g.fillStyle = g.strokeStyle = loss ? theme.accent : theme.fg;
  if (size < 3) return g.fillRect(x - 1, y - 3, 2, 6);
  g.beginPath();
  if (kind === "admit") g.lineTo(x - 3.5, y - 3), g.lineTo(x + 3.5, y - 3), g.lineTo(x, y + 3.5), g.fill();
  else if (!loss) g.rect(x - 2.5, y - 2.5, 5, 5), g.fill();
  else {
    g.lineWidth = 1.8;
    line(g, x - 3, y - 3, x + 3, y + 3);
    line(g, x - 3, y + 3, x + 3, y - 3);
    g.lineWidth = 1;
  }
}

function frame(g, colour, dash = []) {
  g.strokeStyle = colour;
  g.setLineDash(dash);
  g.strokeRect(0.5, 0.5, 21, 13);
}

const swatch = (phase) => (g, theme) => {
  g.fillStyle = phase === "decode" ? theme.hues[0].pale : hatch(theme, theme.hues[0], phase);
  g.fillRect(0, 0, 22, 14);
  frame(g, theme.hues[0].edge);
};

function widthOf(g, pen, text) {
  if (!pen.widths.has(text)) pen.widths.set(text, g.measureText(text).width);
  return pen.widths.get(text);
}

// The text, or as much of it as has room.
function fit(g, pen, text, room) {
  const wide = (part) => widthOf(g, pen, part);
  if (wide(text) <= room) return text;
  const short = text.replace(/^req /, "");
  const keep = Math.floor((short.length * room) / wide(short)) - 1;
  return wide(short) <= room ? short : keep > 1 ? `${short.slice(0, keep)}…` : "";
}

const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
const thousands = (count) => count.toLocaleString("en-US");
const percent = (part, whole) => `${whole ? Math.round((100 * part) / whole) : 0} %`;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function niceStep(least, smallest) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, smallest)));
  return Math.max(smallest, [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least));
}

const seconds = (value, step) => step < 1e-3 ? `${+(value * 1e6).toPrecision(6)} µs`
  : step < 1 ? `${+(value * 1e3).toPrecision(6)} ms` : `${+value.toPrecision(6)} s`;

const brief = (value) => seconds(+value.toPrecision(3), Math.abs(value) || 1); // a duration by itself
