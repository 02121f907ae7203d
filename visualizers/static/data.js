// The first part of the player: what visualizers/frames.py sent (its docstring describes it), indexed, and the common
// clock. visualizers/player.py joins the files of this folder into one ES module. No dependency.

// One request going on in the same way for some iterations.
class Run {
  constructor([row, request, phase, first, length, start, size, tokens, draft, recomputed]) {
    Object.assign(this, { row, request, phase, first, end: first + length, start, size, tokens, draft, recomputed });
    this.starts = null; // of each iteration; only wrong guesses make them uneven
    if (!draft) return;
    this.starts = [start];
    for (let i = first; i < this.end; i++) this.starts.push(this.starts.at(-1) + size - this.rejected(i));
  }

  emitted(i) {
    const token = this.tokens[i - this.first];
    return token === null ? [] : Array.isArray(token) ? token : [token];
  }

  // The position of its first token in iteration i.
  at(i) {
    return this.starts ? this.starts[i - this.first] : this.start + (i - this.first) * this.size;
  }

  // Guesses of iteration i that were wrong.
  rejected(i) {
    return this.draft && this.draft - Math.max(0, this.emitted(i).length - 1);
  }
}

class Engine {
  // dense: one of many, so that its pictures are lower.
  constructor(sent, texts, dense) {
    Object.assign(this, sent, { dense });
    this.texts = texts;
    this.runs = sent.runs.map((run) => new Run(run));
    this.count = this.time.length;
    this.cells = new Int32Array(this.slots * this.count).fill(-1); // index of the run in each cell
    this.running = new Int32Array(this.count);
    this.emitted = new Int32Array(this.count);
    this.runs.forEach((run, number) => this.enter(run, number));
    this.stays = staysOf(this.runs, this.held);
    this.inIterations = !this.timed;
    this.queues = new Lists(this.waiting);
    this.batches = new Lists(this.batch);
    this.lives = livesOf(this);
    this.memoryMap = new MemoryMap(this);
    const arrivals = this.forgotten ? [] : Object.values(this.records).map((record) => record[2]);
    this.origin = [...arrivals, ...this.time].reduce((a, b) => Math.min(a, b), Infinity);
    this.busySoFar = sums(this.running);
    this.emittedSoFar = sums(this.emitted);
    this.paddingSoFar = sums(this.padding);
  }

  enter(run, number) {
    for (let i = run.first; i < run.end; i++) {
      this.cells[run.row * this.count + i] = number;
      this.running[i] += 1;
      this.emitted[i] += run.emitted(i).length;
    }
  }

  run(row, i) {
    return this.runs[this.cells[row * this.count + i]];
  }

  runOf(request, i) {
    return this.lives.get(request)?.runs.find((run) => run.first <= i && i < run.end);
  }

  queue(i) {
    return this.queues.at(i);
  }

  // The text that a request's tokens [first, end) added.
  text(request, first, end) {
    return (this.pieces[request] ?? []).slice(first, end).map((piece) => this.texts[piece]).join("");
  }

  figures(i) {
    const ran = i >= 0;
    return {
      iteration: ran ? `${i + 1} of ${this.count}` : "none yet",
      running: `${ran ? this.running[i] : 0} of ${this.slots}`,
      waiting: ran ? this.queue(i).length : 0,
      idle: (i + 1) * this.slots - (ran ? this.busySoFar[i] : 0),
      padding: !this.padding_known ? "not known" : ran ? this.paddingSoFar[i] : 0,
      tokens: ran ? this.emittedSoFar[i] : 0,
    };
  }
}

const STRIDE = 64;

// A list that changes: the requests that wait, or that run. frames.py sends the changes. Every STRIDE-th list is kept, and the newest
// one that was asked for: all of them would be the square of a long queue.
class Lists {
  constructor(changes) {
    this.changes = changes;
    this.starts = changes.map((change) => change[0]);
    this.kept = [[]];
    for (let n = STRIDE; n <= changes.length; n += STRIDE) this.kept.push(this.apply(this.kept.at(-1), n - STRIDE, n));
    this.latest = [0, []];
  }

  // The list after changes [first, end) of it.
  apply(list, first, end) {
    for (const [, gone, come] of this.changes.slice(first, end)) {
      const left = new Set(gone);
      list = list.filter((request) => !left.has(request));
      if (come.length === 1) list.splice(come[0][0], 0, come[0][1]);
      else if (come.length) list = merge(list, come);
    }
    return list;
  }

  at(i) {
    const count = after(this.starts, i), before = Math.floor(count / STRIDE);
    if (this.latest[0] !== count) this.latest = [count, this.apply(this.kept[before], before * STRIDE, count)];
    return this.latest[1];
  }
}

// The newcomers [place, request], in order of their places, among the requests that stayed.
function merge(stayed, come) {
  const merged = [], rest = stayed.values();
  let next = 0;
  while (merged.length < stayed.length + come.length) {
    if (next < come.length && come[next][0] === merged.length) merged.push(come[next++][1]);
    else merged.push(rest.next().value);
  }
  return merged;
}

// What became of each request, in order of arrival: {request, arrive, runs, came, first, worst, end, kind}.
// arrive, first (the first token), end: iterations. came: the iterations of its tokens, with repeats, and -1 for each that
// came before all of them. worst: the two iterations with its longest gap between two tokens.
function livesOf(engine) {
  const lives = new Map(), life = (request) => {
    if (!lives.has(request)) lives.set(request, { request, arrive: 0, runs: [], came: [], end: null, kind: null });
    return lives.get(request);
  };
  for (const [i, kind, request] of engine.events) {
    if (kind === "arrive") life(request).arrive = i;
    if (kind === "finish" || kind === "abort") Object.assign(life(request), { end: i, kind });
  }
  Object.keys(engine.records).forEach((request) => life(+request));
  for (const [request, [tokens]] of Object.entries(engine.earlier)) life(+request).came = Array(tokens).fill(-1);
  for (const run of engine.runs) {
    const own = life(run.request);
    own.runs.push(run);
    for (let i = run.first; i < run.end; i++) for (let n = run.emitted(i).length; n; n--) own.came.push(i);
  }
  const done = (i) => engine.time[i] + engine.duration[i];
  for (const own of lives.values()) {
    const earlier = engine.earlier[own.request];
    own.first = earlier ? null : own.came[0] ?? null;
    const first = earlier ? earlier[1] : own.first === null ? null : done(own.first);
    own.ttft = first === null ? null : first - (engine.records[own.request]?.[2] ?? 0);
    own.worst = null;
    own.gap = 0;
    for (let n = 1 + (earlier?.[0] ?? 0); n < own.came.length; n++) {
      const gap = done(own.came[n]) - done(own.came[n - 1]);
      if (gap > own.gap) [own.gap, own.worst] = [gap, [own.came[n - 1], own.came[n]]];
    }
  }
  return lives;
}

const sums = (counts) => {
  let sum = 0;
  return Array.from(counts, (count) => (sum += count));
};

// How many of the ascending values are <= value.
function after(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// A stay: a request's time in a row, until it leaves or is preempted. It carries one label. next: where the row's next one begins.
function staysOf(runs, held) {
  const stays = [], latest = new Map(), resumes = new Set(held.map(([row, request, , end]) => `${row} ${request} ${end}`));
  for (const { row, request, first, end } of runs) {
    const stay = latest.get(row);
    const goesOn = stay?.request === request && (stay.end === first || resumes.has(`${row} ${request} ${first}`));
    if (!goesOn) stays.push({ row, request, first, next: Infinity });
    if (!goesOn && stay) stay.next = first;
    latest.set(row, goesOn ? stay : stays.at(-1)).get(row).end = end;
  }
  return stays;
}

// The common clock. Engine e's iteration i lies at [begins[e][i], ends[e][i]), in iterations or in seconds.
class Axis {
  constructor(engines, clock) {
    this.clock = clock;
    const inTime = clock === "time";
    this.begins = engines.map((e) => e.time.map((time, i) => (inTime ? time - e.origin : i)));
    this.ends = engines.map((e, n) => e.duration.map((d, i) => (inTime ? this.begins[n][i] + d : i + 1)));
    this.stops = [...new Set(this.begins.flat())].sort((a, b) => a - b);
    this.last = this.stops.at(-1) ?? 0;
    this.length = this.ends.reduce((most, ends) => Math.max(most, ends.at(-1) ?? 0), 0);
    const longest = Math.max(...engines.map((e) => e.count));
    this.unit = this.length / longest || 1; // an iteration's mean width
  }

  at(e, value) {
    return after(this.begins[e], value) - 1; // the iteration under way or just over; -1: none yet
  }

  // The neighbour of the stop under the playhead among `stops`: the one before (way -1) or after (1), if there is one.
  near(value, way, stops = this.stops) {
    const here = this.stops[after(this.stops, value) - 1] ?? 0;
    return way > 0 ? stops[after(stops, here)] : stops.findLast((stop) => stop < here);
  }
}
