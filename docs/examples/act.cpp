// Acts with a policy that `aaren-rl export` wrote:  act POLICY.onnx TARGET_RETURN < steps.txt > actions.txt
// A line of input is one step: the reward of the previous step (0 at the first), then the raw observation. An empty line
// starts a new episode. A line of output is the action. TARGET_RETURN is a number or "auto". ONNX Runtime 1.21 or newer.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using Numbers = std::vector<double>;

// Calls `use` with a pointer to the elements of a tensor, in their own type.
template <typename Use>
void with_elements(Ort::Value& tensor, Use use) {
  switch (tensor.GetTensorTypeAndShapeInfo().GetElementType()) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return use(tensor.GetTensorMutableData<float>());
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: return use(tensor.GetTensorMutableData<double>());
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return use(tensor.GetTensorMutableData<int64_t>());
    default: return use(tensor.GetTensorMutableData<bool>());
  }
}

Numbers parsed(const std::string& line) {
  std::istringstream words(line);
  Numbers numbers{std::istream_iterator<double>(words), {}};
  if (!words.eof()) throw std::runtime_error("not numbers: " + line);
  return numbers;
}

// A policy and its state in one environment.
class Policy {
 public:
  explicit Policy(const char* file) {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    session_ = Ort::Session(env_, file, options);
    auto format = session_.GetModelMetadata().LookupCustomMetadataMapAllocated("aaren_rl_format", allocator_);
    if (!format || std::string(format.get()) != "2") throw std::runtime_error("not a file of this `aaren-rl export`");
    for (size_t i = 0; i < session_.GetInputCount(); i++) {
      names_.emplace_back(session_.GetInputNameAllocated(i, allocator_).get());
      auto type = session_.GetInputTypeInfo(i);
      auto shape = type.GetTensorTypeAndShapeInfo().GetShape();
      shape[0] = 1;  // one environment
      auto element = type.GetTensorTypeAndShapeInfo().GetElementType();
      inputs_.push_back(Ort::Value::CreateTensor(allocator_, shape.data(), shape.size(), element));
      set(names_[i], Numbers(elements(inputs_[i])));
    }
  }

  // Starts an episode: the memory and the previous action are ignored at time step 0. Infinity stands for "auto".
  void begin(double target_return) {
    auto card = session_.GetModelMetadata().LookupCustomMetadataMapAllocated("policy", allocator_);
    bool estimates = std::string(card.get()).find("\"max_return_estimate\": true") != std::string::npos;
    if (std::isinf(target_return) && !estimates) throw std::runtime_error("no estimate for \"auto\": give a number");
    set("timestep", {0});
    set("return_to_go", {target_return});
  }

  // The next action, for a raw observation and the reward of the previous step. A discrete action is one integer.
  Numbers act(const Numbers& observation, double reward) {
    set("observation", observation);
    set("reward", {reward});
    const char* outputs[] = {"action", "next_return_to_go", "next_timestep", "next_memory"};
    std::vector<const char*> names;
    for (const auto& name : names_) names.push_back(name.c_str());
    auto found = session_.Run(Ort::RunOptions{}, names.data(), inputs_.data(), inputs_.size(), outputs, 4);
    const char* next[] = {"previous_action", "return_to_go", "timestep", "memory"};
    for (size_t i = 0; i < 4; i++) inputs_[find(next[i])] = std::move(found[i]);
    Numbers action(elements(inputs_[find(next[0])]));
    with_elements(inputs_[find(next[0])], [&](auto* from) { std::copy_n(from, action.size(), action.begin()); });
    for (double x : action) if (!std::isfinite(x)) throw std::runtime_error("the action is not finite");
    return action;
  }

  // Call it after `act` if another action was executed, `set("previous_action", executed)`.
  void set(const std::string& name, const Numbers& values) {
    Ort::Value& input = inputs_.at(find(name));
    if (elements(input) != values.size()) throw std::runtime_error(name + ": the wrong number of values");
    with_elements(input, [&](auto* to) { std::copy(values.begin(), values.end(), to); });
  }

 private:
  static size_t elements(const Ort::Value& of) { return of.GetTensorTypeAndShapeInfo().GetElementCount(); }
  size_t find(const std::string& name) { return std::find(names_.begin(), names_.end(), name) - names_.begin(); }
  Ort::Env env_{ORT_LOGGING_LEVEL_FATAL};
  Ort::AllocatorWithDefaultOptions allocator_;
  Ort::Session session_{nullptr};
  std::vector<std::string> names_;
  std::vector<Ort::Value> inputs_;
};

int main(int count, char** arguments) try {
  if (count != 3) throw std::runtime_error("give two arguments, POLICY.onnx TARGET_RETURN");
  double target = std::string(arguments[2]) == "auto" ? INFINITY : parsed(arguments[2]).at(0);
  Policy policy(arguments[1]);
  policy.begin(target);
  Numbers times;
  std::cout.precision(9);
  for (std::string line; std::getline(std::cin, line);) {
    Numbers step = parsed(line);
    if (step.empty()) { policy.begin(target); continue; }
    auto begun = std::chrono::steady_clock::now();
    Numbers action = policy.act({step.begin() + 1, step.end()}, step[0]);
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count());
    for (double x : action) std::cout << x << ' ';
    std::cout << std::endl;
  }
  std::sort(times.begin(), times.end());
  if (!times.empty()) std::cerr << "median time of an action: " << times[times.size() / 2] << " ms\n";
} catch (const std::exception& error) {
  std::cerr << "act: " << error.what() << '\n';
  return 1;
}
