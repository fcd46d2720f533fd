// A trained policy drives MuJoCo in the page: one environment step is one call of the exported ONNX graph and four steps of
// the simulation. Everything is loaded after a click, from this folder; scripts/docs_demo.py copies vendor/ into the site.

const HORIZON = 1000; // environment steps of an episode
const REST = 60; // frames between two episodes
const PUSH = { steps: 12, newtons: 100 };
const here = (file) => new URL(file, import.meta.url).href;

// What Gymnasium's v4 environments add to MuJoCo (gymnasium/envs/mujoco/hopper_v4.py, walker2d_v4.py, half_cheetah_v4.py).
const FALLING = { frameSkip: 4, alive: 1, cost: 1e-3, limit: 10, start: () => 0.01 * Math.random() - 0.005 };
const ROBOTS = {
  hopper: {
    ...FALLING,
    healthy: (q, v) => q[1] > 0.7 && Math.abs(q[2]) < 0.2 && [...q.slice(2), ...v].every((x) => Math.abs(x) < 100),
  },
  walker2d: { ...FALLING, healthy: (q) => q[1] > 0.8 && q[1] < 2 && Math.abs(q[2]) < 1 },
  halfcheetah: {
    frameSkip: 5,
    alive: 0,
    cost: 0.1,
    limit: Infinity,
    start: (ofVelocity) => (ofVelocity ? 0.1 * normal() : 0.2 * Math.random() - 0.1),
    healthy: () => true,
  },
};

/** A planar robot of Gymnasium in MuJoCo's WebAssembly build. */
export class Robot {
  static async load(name) {
    const { default: start } = await import("./vendor/mujoco.js");
    const [mujoco, xml] = await Promise.all([start({ locateFile: (file) => here(`vendor/${file}`) }), text(`${name}.xml`)]);
    return new Robot(mujoco, xml, ROBOTS[name]);
  }

  constructor(mujoco, xml, kind) {
    this.mujoco = mujoco;
    this.model = mujoco.MjModel.from_xml_string(xml);
    this.data = new mujoco.MjData(this.model);
    this.kind = kind;
    this.seconds = kind.frameSkip * this.model.opt.timestep; // of an environment step
  }

  /** Begins an episode from the given position and velocity, or from Gymnasium's noise around the model's. */
  reset(qpos, qvel) {
    const { data } = this;
    this.mujoco.mj_resetData(this.model, data);
    const { qpos: places, qvel: speeds } = data;
    for (const [own, given] of [[places, qpos], [speeds, qvel]])
      for (let i = 0; i < own.length; i++) own[i] = given ? given[i] : own[i] + this.kind.start(own === speeds);
    this.mujoco.mj_forward(this.model, data);
    return this.observation();
  }

  /** Positions but the first, then velocities within the limit. */
  observation() {
    const velocities = Array.from(this.data.qvel, (v) => Math.min(this.kind.limit, Math.max(-this.kind.limit, v)));
    return Float32Array.from([...this.data.qpos.slice(1), ...velocities]);
  }

  /** One environment step, with a horizontal force on the torso in newtons: the reward, and whether the robot fell. */
  step(action, force = 0) {
    const { data } = this;
    const x = data.qpos[0];
    data.ctrl.set(action);
    data.xfrc_applied[6] = force; // of body 1, the torso: its force along x
    for (let k = 0; k < this.kind.frameSkip; k++) this.mujoco.mj_step(this.model, data);
    const cost = this.kind.cost * action.reduce((sum, a) => sum + a * a, 0);
    const reward = (data.qpos[0] - x) / this.seconds + this.kind.alive - cost;
    return { reward, fell: !this.kind.healthy(data.qpos, data.qvel) };
  }

  /** The capsules in the plane: both ends (x, z) and the radius of each. */
  capsules() {
    const { geom_xpos: place, geom_xmat: turn } = this.data;
    const size = this.model.geom_size;
    return Array.from({ length: this.model.ngeom - 1 }, (_, i) => {
      const g = i + 1; // 0 is the floor
      const half = size[3 * g + 1];
      const [x, z, dx, dz] = [place[3 * g], place[3 * g + 2], turn[9 * g + 2] * half, turn[9 * g + 8] * half];
      return { from: [x - dx, z - dz], to: [x + dx, z + dz], radius: size[3 * g] };
    });
  }
}

/** A policy exported by `aaren-rl export`; its inputs and outputs are in aaren_rl/export/export.py. */
export class Policy {
  static async load(name) {
    const ort = await import("./vendor/ort.wasm.min.mjs");
    ort.env.wasm.numThreads = 1; // more need headers that isolate the page from other origins
    ort.env.wasm.wasmPaths = here("vendor/");
    const [card, graph] = await Promise.all([text(`${name}.json`).then(JSON.parse), fetchFile(`${name}.onnx`)]);
    const bytes = await graph.arrayBuffer();
    return new Policy(ort, await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] }), card);
  }

  constructor(ort, session, card) {
    this.ort = ort;
    this.session = session;
    this.card = card;
  }

  begin(target) {
    const { action, memory } = this.card;
    this.state = {
      return_to_go: Float64Array.of(target),
      timestep: BigInt64Array.of(0n),
      previous_action: new Float32Array(action),
      memory: new Float64Array(memory.reduce((a, b) => a * b)),
    };
    this.before = this.state.memory; // the memory a step ago
  }

  /** Asks for what is left of a target after some return, from the next action on. */
  ask(target, achieved, reward) {
    this.state.return_to_go = Float64Array.of(target - achieved + reward); // the graph subtracts the last reward itself
  }

  async act(observation, reward) {
    const { Tensor } = this.ort;
    const { return_to_go, timestep, previous_action, memory } = this.state;
    const out = await this.session.run({
      observation: new Tensor("float32", observation, [1, observation.length]),
      reward: new Tensor("float64", Float64Array.of(reward), [1]),
      return_to_go: new Tensor("float64", return_to_go, [1]),
      timestep: new Tensor("int64", timestep, [1]),
      previous_action: new Tensor("float32", previous_action, [1, previous_action.length]),
      memory: new Tensor("float64", memory, [1, ...this.card.memory]),
    });
    this.before = memory;
    this.state = {
      return_to_go: out.next_return_to_go.data,
      timestep: out.next_timestep.data,
      previous_action: out.action.data,
      memory: out.next_memory.data,
    };
    return out.action.data;
  }

  get stateBytes() {
    return Object.values(this.state).reduce((sum, array) => sum + array.byteLength, 0);
  }
}

/** An episode on its way: robot, policy, what was achieved, and how long actions took. */
export class Episode {
  constructor(robot, policy) {
    this.robot = robot;
    this.policy = policy;
  }

  begin(target, qpos, qvel) {
    this.observation = this.robot.reset(qpos, qvel);
    this.policy.begin(target);
    Object.assign(this, { steps: 0, achieved: 0, reward: 0, over: false, trace: [], milliseconds: [], places: [this.robot.data.qpos[0]] });
  }

  ask(target) {
    this.policy.ask(target, this.achieved, this.reward);
  }

  async step(force = 0) {
    const begun = performance.now();
    const action = await this.policy.act(this.observation, this.reward);
    this.milliseconds.push(performance.now() - begun);
    const { reward, fell } = this.robot.step(action, force);
    this.observation = this.robot.observation();
    this.reward = reward;
    this.achieved += reward;
    this.trace.push(this.achieved);
    this.places.push(this.robot.data.qpos[0]);
    this.steps++;
    this.over = fell || this.steps === HORIZON;
  }
}

/** A standard normal number. */
const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());

async function fetchFile(file) {
  const answer = await fetch(here(file));
  if (!answer.ok) throw new Error(`${file}: ${answer.status} ${answer.statusText}`);
  return answer;
}

async function text(file) {
  return (await fetchFile(file)).text();
}

/** A canvas in CSS pixels, sharp on every screen, in the colors of the page. */
class Board {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
  }

  clear() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio))
      [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.pen.clearRect(0, 0, width, height);
    this.pen.font = "12px sans-serif";
    return [width, height];
  }

  color(name) {
    return getComputedStyle(this.canvas).getPropertyValue(`--demo-${name}`);
  }

  line(points, { color, width = 1, dash = [] }) {
    const { pen } = this;
    pen.strokeStyle = this.color(color);
    pen.lineWidth = width;
    pen.setLineDash(dash);
    pen.beginPath();
    for (const [x, y] of points) pen.lineTo(x, y);
    pen.stroke();
    pen.setLineDash([]);
  }
}

function drawRobot(board, robot) {
  const [width, height] = board.clear();
  const { pen } = board;
  const scale = height / 2.1; // pixels of a meter
  const x0 = robot.data.qpos[0];
  const X = (x) => width / 2 + (x - x0) * scale;
  const Y = (z) => height * 0.88 - z * scale;
  pen.fillStyle = board.color("ground");
  pen.fillRect(0, Y(0), width, height);
  pen.fillStyle = board.color("ink");
  const reach = width / 2 / scale;
  for (let meter = Math.floor(x0 - reach); meter < x0 + reach; meter++) {
    pen.fillRect(X(meter), Y(0), 1, 8);
    pen.fillText(`${meter} m`, X(meter) + 4, Y(0) + 14);
  }
  pen.lineCap = "round";
  robot.capsules().forEach(({ from, to, radius }, i) => {
    const color = i < 4 ? `limb${i}` : "limb-left";
    board.line([[X(from[0]), Y(from[1])], [X(to[0]), Y(to[1])]], { color, width: 2 * radius * scale });
  });
}

/** A curve over the steps of an episode on a grid, with a dashed line at `level` where there is one. */
function drawCurve(board, values, top, every, level) {
  const [width, height] = board.clear();
  const X = (step) => 40 + (step / HORIZON) * (width - 48);
  const Y = (value) => height - 6 - (Math.min(value, top) / top) * (height - 16);
  board.pen.fillStyle = board.color("ink");
  for (let value = 0; value <= top; value += every) {
    board.line([[40, Y(value)], [width, Y(value)]], { color: "grid" });
    board.pen.fillText(value.toLocaleString("en-US"), 0, Y(value) + 4);
  }
  if (level !== undefined) board.line([[40, Y(level)], [width, Y(level)]], { color: "target", width: 2, dash: [6, 4] });
  board.line(values.map((value, step) => [X(step), Y(value)]), { color: "curve", width: 2 });
}

/** The running average of head `r` of all layers' heads. */
function average(memory, { memory: shape, layers, heads, width }, r) {
  if (shape.length > 1) return memory.subarray(r * shape[3], (r + 1) * shape[3] - 1); // of files of older exports
  const [layer, head, numbers] = [Math.floor(r / heads), r % heads, width / heads];
  const first = layer * (2 * heads + width); // a layer's maxima, sums of weights, and sums of weighted values
  const from = first + 2 * heads + head * numbers;
  return memory.subarray(from, from + numbers).map((sum) => sum / (memory[first + heads + head] || 1));
}

/** A row per head of a layer: the running average that it keeps, and the share that the last step replaced. */
function drawState(board, { state, before, card }) {
  const [width, height] = board.clear();
  const { pen } = board;
  const { layers, heads, width: channels } = card;
  const numbers = channels / heads;
  const [left, bars, row] = [96, 56, height / (layers * heads)];
  const cell = (width - left - bars - 8) / numbers;
  for (let r = 0; r < layers * heads; r++) {
    const [y, tall] = [r * row, row - (r % heads === heads - 1 ? 3 : 1)];
    const [own, old] = [state.memory, before].map((memory) => average(memory, card, r));
    const largest = Math.max(1e-9, ...own.map(Math.abs));
    pen.fillStyle = board.color("ink");
    pen.fillText(r % heads ? "" : `layer ${1 + r / heads}`, 0, y + 12);
    pen.fillText(`head ${1 + (r % heads)}`, 52, y + Math.min(12, row));
    own.forEach((value, i) => {
      pen.fillStyle = board.color(value < 0 ? "low" : "high");
      pen.globalAlpha = Math.abs(value) / largest;
      pen.fillRect(left + i * cell, y, cell - 1, tall);
    });
    pen.globalAlpha = 1;
    let [moved, all] = [0, 1e-9];
    own.forEach((value, i) => {
      moved += (value - old[i]) ** 2;
      all += value ** 2;
    });
    pen.fillStyle = board.color("curve");
    pen.fillRect(width - bars, y, bars * Math.min(1, Math.sqrt(moved / all)), tall);
  }
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const number = (value, digits = 0) => value.toLocaleString("en-US", { maximumFractionDigits: digits });
const size = (bytes) => (bytes < 1e6 ? `${number(bytes / 1e3, 1)} kB` : `${number(bytes / 1e6, 1)} MB`);

/** The page's controls around an `Episode`. */
class Demo {
  constructor(root) {
    this.root = root;
    this.boards = Object.fromEntries(["view", "chart", "times", "memory"].map((name) => [name, new Board(this.part(name))]));
    this.debt = 0; // environment steps that are due
    this.rest = 0;
    this.part("start").onclick = () => this.load(this.part("robot").value);
    this.part("robot").onchange = () => this.turn && this.load(this.part("robot").value);
    this.part("target").oninput = () => this.showTarget();
    this.part("left").onclick = () => this.push(-1);
    this.part("right").onclick = () => this.push(1);
    this.part("pause").onclick = () => this.toggle("pause");
    this.part("slow").onclick = () => this.toggle("slow");
    this.part("restart").onclick = () => this.begin();
    const keys = { a: "left", d: "right", p: "pause", s: "slow", r: "restart" };
    root.addEventListener("keydown", (event) => {
      const name = !(event.ctrlKey || event.altKey || event.metaKey) && keys[event.key.toLowerCase()];
      if (!name || !this.episode) return;
      event.stopPropagation(); // the site has shortcuts of its own: P for the previous page, S for the search
      this.part(name).click();
    });
  }

  part(name) {
    return this.root.querySelector(`[data-part="${name}"]`);
  }

  get target() {
    return Number(this.part("target").value);
  }

  isOn(name) {
    return this.part(name).getAttribute("aria-pressed") === "true";
  }

  toggle(name) {
    this.part(name).setAttribute("aria-pressed", String(!this.isOn(name)));
  }

  push(direction) {
    this.pushes = { steps: PUSH.steps, force: direction * PUSH.newtons };
  }

  async load(name) {
    const turn = (this.turn = (this.turn ?? 0) + 1); // a later choice replaces this one
    this.part("start").disabled = true;
    this.say("Loading ...");
    try {
      const [robot, policy] = await Promise.all([Robot.load(name), Policy.load(name)]);
      if (turn !== this.turn) return;
      const { low, high, asked } = policy.card.targets;
      Object.assign(this.part("target"), { min: low, max: high, value: asked });
      this.part("made").textContent = policy.card.made;
      this.episode = new Episode(robot, policy);
      this.part("panel").hidden = false;
      this.part("start").hidden = true;
      this.part("target").focus({ preventScroll: true }); // a hidden button cannot keep the focus
      this.begin();
      this.run(turn);
    } catch (error) {
      if (turn !== this.turn) return;
      this.part("panel").hidden = true;
      Object.assign(this.part("start"), { hidden: false, disabled: false });
      this.fail(error);
    }
  }

  begin() {
    this.episode.begin(this.target);
    this.pushes = { steps: 0, force: 0 };
    this.showTarget();
    this.rest = 0;
    this.say("");
  }

  showTarget() {
    this.part("asked").textContent = number(this.target);
    this.episode?.ask(this.target);
  }

  say(words) {
    this.part("said").textContent = words;
  }

  fail(error) {
    this.root.dataset.error = String(error);
    this.say(`The demo stopped: ${error.message ?? error}`);
  }

  run(turn) {
    let last = performance.now();
    let frames = [];
    const frame = async (now) => {
      if (turn !== this.turn) return;
      frames = [...frames.slice(-59), now - last];
      const elapsed = Math.min(now - last, 100) / 1000; // what a slow machine or a hidden tab missed is dropped
      last = now;
      try {
        await this.advance(elapsed);
        this.draw(1000 / mean(frames));
      } catch (error) {
        return this.fail(error);
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  async advance(elapsed) {
    const { episode } = this;
    if (this.isOn("pause")) return;
    if (episode.over) {
      if (--this.rest <= 0) this.begin();
      return;
    }
    this.debt += (elapsed / episode.robot.seconds) * (this.isOn("slow") ? 0.2 : 1);
    for (; this.debt >= 1 && !episode.over; this.debt--) {
      const pushed = this.pushes.steps-- > 0;
      await episode.step(pushed ? this.pushes.force : 0);
    }
    if (episode.over) {
      this.debt = 0;
      this.rest = REST;
      const how = episode.steps === HORIZON ? "" : `, fell at step ${number(episode.steps)}`;
      this.say(`Asked for ${number(this.target)}, achieved ${number(episode.achieved)}${how}.`);
    }
  }

  draw(framesPerSecond) {
    const { steps, achieved, trace, milliseconds, places, policy, robot } = this.episode;
    const since = Math.max(0, steps - Math.round(1 / robot.seconds)); // a second ago
    const { layers, width, action, observation } = policy.card;
    const shown = {
      steps: number(steps),
      achieved: number(achieved),
      speed: `${number((places[steps] - places[since]) / Math.max(1, steps - since) / robot.seconds, 2)} m/s`,
      "left-over": number(this.target - achieved),
      action: `${number(mean(milliseconds.slice(-100)) || 0, 2)} ms`,
      frames: number(framesPerSecond),
      state: size(policy.stateBytes),
      window: size(20 * 4 * (observation + action + 1)),
      cache: size(steps * layers * 2 * width * 4),
    };
    for (const [name, words] of Object.entries(shown)) this.part(name).textContent = words;
    drawRobot(this.boards.view, robot);
    drawCurve(this.boards.chart, trace, 1000 * Math.ceil(policy.card.targets.high / 1000), 1000, this.target);
    drawCurve(this.boards.times, milliseconds, 4, 2);
    drawState(this.boards.memory, policy);
    this.root.dataset.steps = steps;
  }
}

const root = document.getElementById("demo");
if (root) {
  new Demo(root);
  root.dataset.ready = "true";
}
