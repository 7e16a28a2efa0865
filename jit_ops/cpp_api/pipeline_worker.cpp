// weft::servePipelines(): what drivers of pipelines ask of a worker without Python, as methods of
// one servable. weft/pipe/_driver/script_worker.py calls them.
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/custom_class.h>

#include <map>
#include <mutex>

#include "jit_ops/cpp_api/pipeline_values.h"
#include "jit_ops/serve/published.h"
#include "jit_ops/serve/servable.h"
#include "jit_ops/weft.h"
#include "pipe/schedule/timeline.h"
#include "pipe/scripted/script_part.h"

namespace weft {

namespace {

using pipe::ScriptOptimizer;
using pipe::ScriptPart;

constexpr const char* kName = "weft.pipeline";

std::string nameOfThisWorker() {
  return torch::distributed::rpc::RpcAgent::getCurrentRpcAgent()->getWorkerInfo().name_;
}

// The driver's hold on a part. It is the value of an RRef that the driver has: it goes when the
// driver drops that, or is lost, and the part goes with it.
class Hold final : public torch::CustomClassHolder {
 public:
  explicit Hold(std::function<void()> let_go) : let_go_(std::move(let_go)) {}
  ~Hold() override { let_go_(); }

 private:
  const std::function<void()> let_go_;
};

// The parts of pipelines at this worker, by the pipelines' names. Any thread.
class PipelineWorker final : public ops::Servable,
                             public std::enable_shared_from_this<PipelineWorker> {
 public:
  PipelineWorker() {
    addParts();
    addState();
    addOptimizer();
  }

  ops::FuturePtr run(const Method& method, Values args,
                     const std::vector<std::string>& /*names*/) override {
    return asFuture(codes_.at(method.name)(args), method.returns);
  }

 private:
  using Code = std::function<at::IValue(const Values&)>;

  void method(const std::string& schema, Code code) {
    auto parsed = torch::jit::parseSchema(schema);
    codes_.emplace(parsed.name(), std::move(code));
    add(std::move(parsed));
  }
  // One whose first argument is the name of a pipeline that has a part here. `code` may return
  // nothing.
  template <typename PartCode>
  void partMethod(const std::string& schema, PartCode code) {
    method(schema, [this, code = std::move(code)](const Values& args) {
      const auto part = mustFind(args[0].toStringRef());
      if constexpr (std::is_void_v<decltype(code(*part, args))>) {
        code(*part, args);
        return at::IValue();
      } else {
        return at::IValue(code(*part, args));
      }
    });
  }

  void addParts() {
    method("clock() -> int", [](const Values&) { return at::IValue(pipe::monotonicNanos()); });
    method("has_part(str pipe) -> bool", [this](const Values& args) {
      return at::IValue(find(args[0].toStringRef()) != nullptr);
    });
    method(
        "build(str pipe, str driver, str[][] places, (int, (str, int)[])[] stages, "
        "Tensor[] modules) -> Any",
        [this](const Values& args) { return build(args); });
    method("close(str pipe) -> ()", [this](const Values& args) {
      exchange(args[0].toStringRef(), nullptr);
      return at::IValue();
    });
    partMethod(
        "run(str pipe, int mini_batch, (str, int, int)[] tasks, bool[] recompute, bool trains, "
        "Tensor? criterion, Any[] targets, float[] weights) -> Any",
        [](ScriptPart& part, const Values& args) {
          auto done = c10::make_intrusive<ops::JitFuture>(c10::AnyType::get());
          part.run(ops::jobOf(args), [done](const auto* run, const std::string& error) {
            try {
              done->markCompleted(ops::outcomeOf(run, error));
            } catch (...) {  // nobody above would catch it
              done->setErrorIfNeeded(std::current_exception());
            }
          });
          return done;
        });
    partMethod("abandon(str pipe, int mini_batch, str reason) -> ()",
               [](ScriptPart& part, const Values& args) {
                 part.abandon(args[1].toInt(), args[2].toStringRef());
               });
    partMethod(
        "take_output(str pipe, int mini_batch) -> Any",
        [](ScriptPart& part, const Values& args) { return part.takeOutput(args[1].toInt()); });
  }

  void addState() {
    partMethod("layers_state(str pipe) -> Dict(str, Tensor)",
               [](ScriptPart& part, const Values&) { return pipe::stateOf(part.layers()); });
    partMethod("load_layers(str pipe, Dict(str, Tensor) state) -> Any",
               [](ScriptPart& part, const Values& args) {
                 const auto keys = pipe::loadState(part.layers(), args[1].to<pipe::StateDict>());
                 return c10::ivalue::Tuple::create(keys.missing, keys.used);
               });
    partMethod("train(str pipe, bool mode) -> ()", [](ScriptPart& part, const Values& args) {
      pipe::setTraining(part.layers(), args[1].toBool());
    });
    partMethod("zero_grad(str pipe, bool set_to_none) -> ()",
               [](ScriptPart& part, const Values& args) {
                 pipe::clearGradients(part.layers(), args[1].toBool());
               });
    partMethod("gradient_norms(str pipe, float norm_type) -> Tensor[]",
               [](ScriptPart& part, const Values& args) {
                 return pipe::gradientNorms(part.layers(), args[1].toDouble());
               });
    partMethod("scale_gradients(str pipe, float factor) -> ()",
               [](ScriptPart& part, const Values& args) {
                 pipe::scaleGradients(part.layers(), args[1].toDouble());
               });
  }

  void addOptimizer() {
    partMethod("make_optimizer(str pipe) -> ()",
               [](ScriptPart& part, const Values&) { part.makeOptimizer(); });
    partMethod("optimize(str pipe, str kind, Dict(str, float) options) -> ()",
               [](ScriptPart& part, const Values& args) {
                 part.optimizer().step(args[1].toStringRef(),
                                       args[2].to<ScriptOptimizer::Options>());
               });
    partMethod(
        "optimizer_state(str pipe) -> Dict(str, Dict(str, Tensor))",
        [](ScriptPart& part, const Values&) { return ops::toDicts(part.optimizer().state()); });
    partMethod("load_optimizer(str pipe, Dict(str, Dict(str, Tensor)) state) -> ()",
               [](ScriptPart& part, const Values& args) {
                 part.optimizer().load(args[1].to<ScriptOptimizer::State>());
               });
  }

  // Called as a remote: its value is the driver's hold.
  at::IValue build(const Values& args) {
    const auto stages = ops::stagesOf(args[3], args[4]);
    pipe::WorkerPart part{args[0].toStringRef(), nameOfThisWorker(), args[1].toStringRef(), {}, {}};
    for (const at::IValue& workers : args[2].toListRef())
      part.places.push_back(workers.to<std::vector<std::string>>());
    exchange(part.pipeline, nullptr);  // one of this name would end what the new one waits for
    const auto made = std::make_shared<ScriptPart>(part, stages);
    exchange(part.pipeline, made);
    return at::IValue::make_capsule(c10::make_intrusive<Hold>(
        [self = weak_from_this(), name = part.pipeline, held = std::weak_ptr<ScriptPart>(made)] {
          if (const auto worker = self.lock()) worker->letGo(name, held);
        }));
  }

  // The part ends, unless another one has its name by now.
  void letGo(const std::string& pipeline, const std::weak_ptr<ScriptPart>& held) {
    const std::shared_ptr<ScriptPart> part = held.lock();  // ends without the lock
    if (part == nullptr) return;
    {
      const std::lock_guard lock(mutex_);
      const auto found = parts_.find(pipeline);
      if (found == parts_.end() || found->second != part) return;
      parts_.erase(found);
    }
    part->close();
  }

  // What was there ends without the lock. Calls may have it, and wait for what it runs.
  void exchange(const std::string& pipeline, std::shared_ptr<ScriptPart> part) {
    {
      const std::lock_guard lock(mutex_);
      std::swap(parts_[pipeline], part);
      if (parts_[pipeline] == nullptr) parts_.erase(pipeline);
    }
    if (part != nullptr) part->close();
  }

  std::shared_ptr<ScriptPart> find(const std::string& pipeline) {
    const std::lock_guard lock(mutex_);
    const auto found = parts_.find(pipeline);
    return found == parts_.end() ? nullptr : found->second;
  }

  std::shared_ptr<ScriptPart> mustFind(const std::string& pipeline) {
    auto part = find(pipeline);
    TORCH_CHECK(part != nullptr, pipe::noStageAt(nameOfThisWorker()));
    return part;
  }

  std::map<std::string, Code> codes_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<ScriptPart>> parts_;
};

}  // namespace

void servePipelines() {
  [[maybe_unused]] static const std::int64_t version =
      ops::publish(kName, std::make_shared<PipelineWorker>());
}

}  // namespace weft
