// Part 1 of 4 of the player: what visualizers/frames.py sent (its docstring describes it), indexed, and the common clock.
// The parts are joined into one ES module by visualizers/player.py: data, style, views, player. No dependency.

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
  constructor(sent) {
    Object.assign(this, sent);
    this.runs = sent.runs.map((run) => new Run(run));
    this.count = this.time.length;
    this.cells = new Int32Array(this.slots * this.count).fill(-1); // index of the run in each cell
    this.running = new Int32Array(this.count);
    this.emitted = new Int32Array(this.count);
    this.runs.forEach((run, number) => this.enter(run, number));
    this.stays = staysOf(this.runs, this.held);
    this.queueChanges = this.waiting.map((change) => change[0]);
    this.queues = queuesOf(this.waiting);
    const arrivals = Object.values(this.records).map((record) => record[2]);
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

  queue(i) {
    const place = after(this.queueChanges, i) - 1;
    return place < 0 ? [] : this.queues[place];
  }

  figures(i) {
    const ran = i >= 0;
    return {
      iteration: ran ? `${i} of ${this.count - 1}` : "none yet",
      running: `${ran ? this.running[i] : 0} of ${this.slots}`,
      waiting: ran ? this.queue(i).length : 0,
      idle: (i + 1) * this.slots - (ran ? this.busySoFar[i] : 0),
      padding: ran ? this.paddingSoFar[i] : 0,
      tokens: ran ? this.emittedSoFar[i] : 0,
    };
  }
}

function queuesOf(changes) {
  let queue = [];
  return changes.map(([, left, more]) => (queue = [...queue.slice(left), ...more]));
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

// A stay: a request's time in a row, until it leaves or is preempted. It carries one label.
function staysOf(runs, held) {
  const stays = [], latest = new Map(), resumes = new Set(held.map(([row, request, , end]) => `${row} ${request} ${end}`));
  for (const { row, request, first, end } of runs) {
    const stay = latest.get(row);
    const goesOn = stay?.request === request && (stay.end === first || resumes.has(`${row} ${request} ${first}`));
    if (!goesOn) stays.push({ row, request, first });
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
