// The token stream: the text of each request as far as the playhead has come. Not a canvas: text is to be read, selected
// and spoken.

const STREAMS = 12; // requests shown at once
const LETTER = 7.6; // px, about
const PROMPT = 44; // characters of a prompt, unless its request is followed

const streamView = { name: "text", legend: () => [] };

class TextStream {
  constructor(player, e) {
    Object.assign(this, { player, e, view: streamView, engine: player.engines[e], drawn: null });
    this.node = element("div", "te-stream");
    this.node.dataset.testid = "stream";
  }

  resize(width) {
    this.width = width;
    this.drawn = null;
  }

  draw() {
    const i = this.player.axis.at(this.e, this.player.position), key = `${i} ${this.player.version}`;
    if (this.drawn === key) return;
    this.drawn = key;
    const { shown, more } = this.choose(i);
    this.node.replaceChildren(...shown.map((life) => this.row(life, i)),
      ...(more ? [element("div", "te-more", `and ${plural(more, "other request")}`)] : []));
    if (!shown.length) this.node.append(element("div", "te-more", "no request has arrived"));
  }

  // The request that is followed, those that run, ended last, and wait; in order of arrival, so that rows do not jump.
  choose(i) {
    const { engine } = this, arrived = [...engine.lives.values()].filter((life) => life.arrive <= Math.max(i, 0));
    const rank = (life) => life.request === this.player.follow ? 0 : engine.runOf(life.request, i) ? 1
      : life.end !== null && life.end <= i ? 2 + (i - life.end) / (engine.count + 1) : life.came[0] <= i ? 1.5 : 3;
    const kept = new Set(arrived.map((life) => [rank(life), life]).sort((a, b) => a[0] - b[0]).slice(0, STREAMS).map(([, life]) => life));
    return { shown: arrived.filter((life) => kept.has(life)), more: arrived.length - kept.size };
  }

  row(life, i) {
    const { player, engine } = this, { request } = life, followed = request === player.follow;
    const count = after(life.came, i), before = after(life.came, i - 1), wrong = engine.diverged[request];
    const row = element("div", "te-said"), name = row.appendChild(element("span", "te-who", player.label(request)));
    row.dataset.request = request;
    row.classList.toggle("te-faint", player.follow !== null && !followed);
    name.style.borderColor = player.theme.hues[request % player.theme.hues.length].full;
    const text = row.appendChild(element("span", "te-text"));
    const asked = Array.from(plain(engine.records[request]?.[6] ?? "").trim());
    const prompt = asked.length > PROMPT && !followed ? `${asked.slice(0, PROMPT - 1).join("")}…` : asked.join("");
    const whole = followed ? Infinity : Math.max(20, Math.floor((this.width - 150) / LETTER)) - (this.width < 480 ? 0 : 12);
    const parts = [
      ["", engine.text(request, 0, wrong ? Math.min(before, wrong[0]) : before)],
      ...(wrong && before > wrong[0] ? [["te-wrong", engine.text(request, wrong[0], before)]] : []),
      [wrong && count > wrong[0] ? "te-wrong te-new" : "te-new", engine.text(request, before, count)],
    ];
    if (prompt) text.append(element("span", "te-prompt", `${prompt} `));
    text.append(...tail(parts, Math.max(20, whole - prompt.length)));
    row.append(element("span", "te-state", this.state(life, i, count)));
    if (wrong && count >= Math.min(wrong[0] + 1, life.came.length)) row.append(this.verdict(request, wrong));
    row.addEventListener("click", () => player.setFollow(followed ? null : request));
    return row;
  }

  state(life, i, count) {
    if (life.end !== null && life.end <= i) return life.kind === "finish" ? plural(count, "token") + ", finished" : "aborted";
    if (this.engine.queue(i).includes(life.request)) return count ? `${plural(count, "token")}, waiting` : "waiting";
    return plural(count, "token");
  }

  // The first token that is not the expected one, in words.
  verdict(request, [index, token, text]) {
    const own = this.engine.text(request, index, index + 1), quoted = (said, id) => (said ? JSON.stringify(said) : `token ${id}`);
    const wanted = token === null ? "the end" : quoted(text, token), got = index < this.engine.lives.get(request).came.length ? quoted(own, "without text") : "the end";
    return element("span", "te-verdict", `first wrong token: number ${index + 1}, ${got} instead of ${wanted}`);
  }
}

const briefPrompt = (text) => (text.length > 2 * PROMPT ? `${text.slice(0, 2 * PROMPT - 1)}…` : text);

// Line breaks are shown, not obeyed.
const plain = (text) => text.replace(/\n/g, "↵").replace(/<\|\w+\|>/g, " ");

// Spans of [class, text], the last `room` characters of them.
function tail(parts, room) {
  const nodes = [];
  for (const [name, text] of [...parts].reverse()) {
    if (room <= 0) break;
    const letters = Array.from(plain(text)), cut = letters.length > room;
    const shown = (cut ? "…" : "") + letters.slice(Math.max(0, letters.length - room)).join("");
    room = cut ? 0 : room - letters.length;
    if (shown) nodes.unshift(element("span", name, shown));
  }
  return nodes;
}
