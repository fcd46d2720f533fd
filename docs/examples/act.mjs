// Acts with a policy that `aaren-rl export` wrote:  node act.mjs POLICY.onnx TARGET_RETURN < steps.txt > actions.txt
// A line of input is one step: the reward of the previous step (0 at the first), then the raw observation. An empty line
// starts a new episode. A line of output is the action. TARGET_RETURN is a number or "auto". Needs onnxruntime-node.
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { InferenceSession, Tensor } from "onnxruntime-node";

const ARRAYS = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array, bool: Uint8Array };
const NEXT = {
  previous_action: "action",
  return_to_go: "next_return_to_go",
  timestep: "next_timestep",
  memory: "next_memory",
};

/** A policy and its state in one environment. */
class Policy {
  static async load(file) {
    const bytes = await readFile(file);
    if (!bytes.includes("aaren_rl_format")) throw new Error(`${file}: not written by aaren-rl export`);
    const session = await InferenceSession.create(bytes, { intraOpNumThreads: 1, logSeverityLevel: 4 });
    return new Policy(session, bytes.includes('"max_return_estimate": true')); // in the policy's card
  }

  constructor(session, estimates) {
    this.session = session;
    this.estimates = estimates;
    this.inputs = {};
    for (const { name, type, shape } of session.inputMetadata) {
      const sizes = [1, ...shape.slice(1)]; // one environment
      this.inputs[name] = new Tensor(type, new ARRAYS[type](sizes.reduce((a, b) => a * b)), sizes);
    }
  }

  /** Starts an episode: the memory and the previous action are ignored at time step 0. Infinity stands for "auto". */
  begin(target) {
    if (target === Infinity && !this.estimates) throw new Error('no estimate for "auto": give a number');
    this.set("timestep", [0]);
    this.set("return_to_go", [target]);
  }

  /** The next action, for a raw observation and the reward of the previous step. A discrete action is one integer. */
  async act(observation, reward) {
    this.set("observation", observation);
    this.set("reward", [reward]);
    const outputs = await this.session.run(this.inputs, Object.values(NEXT));
    for (const [name, output] of Object.entries(NEXT)) this.inputs[name] = outputs[output];
    const action = Array.from(outputs.action.data, Number);
    if (!action.every(Number.isFinite)) throw new Error("the action is not finite");
    return action;
  }

  /** Call it after `act` if another action was executed, `set("previous_action", executed)`. */
  set(name, values) {
    const { type, dims, size } = this.inputs[name];
    if (values.length !== size) throw new Error(`${name}: ${values.length} values instead of ${size}`);
    this.inputs[name] = new Tensor(type, ARRAYS[type].from(values, type === "int64" ? BigInt : Number), dims);
  }
}

function parsed(line) {
  const numbers = line.split(/\s+/).filter(Boolean).map(Number);
  if (!numbers.every(Number.isFinite)) throw new Error(`not numbers: ${line}`);
  return numbers;
}

async function main([file, asked]) {
  if (!asked) throw new Error("give two arguments, POLICY.onnx TARGET_RETURN");
  const target = asked === "auto" ? Infinity : parsed(asked)[0];
  const policy = await Policy.load(file);
  policy.begin(target);
  const times = [];
  for await (const line of createInterface({ input: process.stdin })) {
    const [reward, ...observation] = parsed(line);
    if (reward === undefined) {
      policy.begin(target);
      continue;
    }
    const begun = performance.now();
    const action = await policy.act(observation, reward);
    times.push(performance.now() - begun);
    console.log(action.join(" "));
  }
  times.sort((a, b) => a - b);
  if (times.length) console.error(`median time of an action: ${times[times.length >> 1].toPrecision(3)} ms`);
}

await main(process.argv.slice(2)).catch((error) => {
  console.error(`act: ${error.message}`);
  process.exitCode = 1;
});
