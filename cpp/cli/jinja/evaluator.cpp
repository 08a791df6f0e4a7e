// Walks the tree. Scopes as in Jinja: a loop's body has its own, an if's has not, a macro sees the outermost.
#include <fastspec/error.h>

#include <map>

#include "cli/jinja/parser.h"
#include "cli/jinja/value.h"

namespace fastspec::cli::jinja {
namespace {

constexpr std::int64_t kMaxSteps = 2'000'000;
constexpr std::size_t kBytesPerStep = 64;  // what a step may look at or make; more costs more steps
constexpr std::int64_t kStepsBetweenPolls = 10'000;
constexpr int kMaxNesting = 1000;  // of the evaluator's own calls, macros in macros included

enum class Flow { kNext, kBreak, kContinue };

class Evaluator {
 public:
  Evaluator(const Json& variables, const std::function<void()>& poll) : poll_(poll), scopes_(1) {
    for (const auto& [name, value] : variables.items()) scopes_[0][name] = Value::of(value);
  }

  std::string render(const Body& body) {
    std::string output;
    run(body, output);
    return output;
  }

 private:
  using Scope = std::map<std::string, Value>;

  void count_steps(std::size_t count) {
    steps_ += static_cast<std::int64_t>(count);
    if (steps_ > kMaxSteps) fail_render("more work than two million steps");
    if (steps_ < next_poll_) return;
    poll_();
    next_poll_ = steps_ + kStepsBetweenPolls;
  }

  /// Counts what making a value cost, so that a template can neither run nor grow without end.
  Value made(Value value) {
    const Json* const data = value.fields != nullptr ? value.fields.get() : value.data.get();
    if (data != nullptr) count_steps(size_of(*data) / kBytesPerStep);
    return value;
  }

  /// Counts what looking through a value costs: the bytes of a text, the items of a list or dict.
  Value used(Value value) {
    if (value.is_string()) count_steps(value.string().size() / kBytesPerStep);
    if (value.is_array() || value.is_object()) count_steps(value.data->size() * sizeof(Json) / kBytesPerStep);
    return value;
  }

  /// The same for an operation that looks through the items of items too.
  Value compared(Value value) { return value.is_data() ? made(std::move(value)) : value; }

  /// Bounds the depth of calls while it lives.
  class Nesting {
   public:
    explicit Nesting(Evaluator& evaluator) : evaluator_(evaluator) {
      if (++evaluator_.nesting_ > kMaxNesting) fail_render("macros or expressions nested too deeply");
    }
    ~Nesting() { --evaluator_.nesting_; }

   private:
    Evaluator& evaluator_;
  };

  void append(std::string& output, const std::string& text) {
    count_steps(text.size() / kBytesPerStep);
    output += text;
  }

  // --- statements ---

  Flow run(const Body& body, std::string& output) {
    const Nesting nesting(*this);
    for (const Statement& statement : body.statements) {
      const Flow flow = run(statement, output);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow run(const Statement& statement, std::string& output) {
    count_steps(1);
    switch (statement.kind) {
      case Statement::Kind::kText:
        append(output, statement.text);
        return Flow::kNext;
      case Statement::Kind::kOutput:
        append(output, to_text(evaluate(*statement.value)));
        return Flow::kNext;
      case Statement::Kind::kIf:
        for (const Statement::Branch& branch : statement.branches) {
          if (branch.condition == nullptr || is_true(evaluate(*branch.condition))) return run(branch.body, output);
        }
        return Flow::kNext;
      case Statement::Kind::kFor:
        run_for(statement, output);
        return Flow::kNext;
      case Statement::Kind::kSet:
        run_set(statement);
        return Flow::kNext;
      case Statement::Kind::kMacro: {
        Value macro;
        macro.kind = Value::Kind::kMacro;
        macro.macro = &statement;
        scopes_.back()[statement.text] = macro;
        return Flow::kNext;
      }
      case Statement::Kind::kGroup:
        return run(statement.branches[0].body, output);
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  void bind_targets(const Statement& loop, const Value& item) {
    if (loop.names.size() == 1) {
      scopes_.back()[loop.names[0]] = item;
      return;
    }
    const std::vector<Value> parts = items_of(used(item));
    if (parts.size() != loop.names.size()) fail_render("a loop over items of another size than its names");
    for (std::size_t i = 0; i < parts.size(); ++i) scopes_.back()[loop.names[i]] = parts[i];
  }

  void run_for(const Statement& loop, std::string& output) {
    std::vector<Value> items = items_of(used(evaluate(*loop.value)));
    count_steps(items.size());
    if (loop.condition != nullptr) {
      std::vector<Value> kept;
      for (const Value& item : items) {
        scopes_.emplace_back();
        bind_targets(loop, item);
        if (is_true(evaluate(*loop.condition))) kept.push_back(item);
        scopes_.pop_back();
      }
      items = std::move(kept);
    }
    if (items.empty() && loop.branches.size() > 1) {
      run(loop.branches[1].body, output);
      return;
    }
    const auto size = static_cast<std::int64_t>(items.size());
    for (std::int64_t i = 0; i < size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      scopes_.emplace_back();
      bind_targets(loop, items[at]);
      Json state = {{"index", i + 1},  {"index0", i},           {"revindex", size - i}, {"revindex0", size - i - 1},
                    {"first", i == 0}, {"last", i + 1 == size}, {"length", size}};
      if (i > 0) state["previtem"] = *items[at - 1].data;
      if (i + 1 < size) state["nextitem"] = *items[at + 1].data;
      scopes_.back()["loop"] = made(Value::of(std::move(state)));
      const Flow flow = run(loop.branches[0].body, output);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
  }

  void run_set(const Statement& set) {
    Value value;
    if (set.value != nullptr) {
      value = evaluate(*set.value);
    } else {
      std::string text;
      scopes_.emplace_back();
      run(set.branches[0].body, text);
      scopes_.pop_back();
      value = Value::of(std::move(text));
    }
    if (set.attribute.empty()) {
      scopes_.back()[set.names[0]] = std::move(value);
      return;
    }
    const Value space = lookup(set.names[0]);
    if (space.kind != Value::Kind::kNamespace) fail_render("\"" + set.names[0] + "\" is no namespace");
    if (!value.is_data()) fail_unsupported("a namespace with a field that is no data");
    (*space.fields)[set.attribute] = *made(value).data;
  }

  // --- expressions ---

  Value lookup(const std::string& name) {
    count_steps((scopes_.size() - base_) / 8);
    for (std::size_t i = scopes_.size(); i-- > base_;) {
      if (const auto found = scopes_[i].find(name); found != scopes_[i].end()) return found->second;
    }
    if (const auto found = scopes_[0].find(name); found != scopes_[0].end()) return found->second;
    return is_function(name) ? Value::function(name) : Value::undefined(name);
  }

  Value evaluate(const Expression& node) {
    using Kind = Expression::Kind;
    const Nesting nesting(*this);
    count_steps(1);
    const auto child = [&](std::size_t i) { return evaluate(*node.children[i]); };
    switch (node.kind) {
      case Kind::kLiteral:
        return Value::of(std::shared_ptr<const Json>(std::shared_ptr<void>(), &node.literal));
      case Kind::kName:
        return lookup(node.text);
      case Kind::kList:
      case Kind::kDict:
        return made(collect(node));
      case Kind::kAttribute:
        return look_up(child(0), Value::of(node.text));
      case Kind::kIndex: {
        const Value container = child(0);
        return look_up(container, child(1));
      }
      case Kind::kSlice: {
        const auto part = [&](std::size_t i) {
          return node.children[i] == nullptr ? Value::of(Json(nullptr)) : child(i);
        };
        return made(apply_slice(used(child(0)), part(1), part(2), part(3)));
      }
      case Kind::kCall:
        return made(call(node));
      case Kind::kFilter:
        return made(apply_filter(node.text, used(child(0)), arguments(node)));
      case Kind::kTest: {
        // Without an argument a test looks at no more than the type.
        const Value value = node.children.size() > 1 ? compared(child(0)) : child(0);
        return Value::of(apply_test(node.text, value, arguments(node)));
      }
      case Kind::kNegative:
        return apply_binary("-", Value::of(Json(0)), child(0));
      case Kind::kNot:
        return Value::of(!is_true(child(0)));
      case Kind::kAnd: {
        const Value left = child(0);
        return is_true(left) ? child(1) : left;
      }
      case Kind::kOr: {
        const Value left = child(0);
        return is_true(left) ? left : child(1);
      }
      case Kind::kBinary: {
        const Value left = compared(child(0));
        return made(apply_binary(node.text, left, compared(child(1))));
      }
      case Kind::kConditional:
        if (is_true(child(1))) return child(0);
        return node.children[2] == nullptr ? Value::undefined("the missing else") : child(2);
    }
    return {};
  }

  Value look_up(const Value& container, const Value& key) {
    if (container.kind == Value::Kind::kNamespace) return made(member(container, key));
    // An item of a list is found at once.
    return member(container.is_array() ? container : used(container), key);
  }

  Value collect(const Expression& node) {
    const auto data = [&](std::size_t i) {
      const Value value = evaluate(*node.children[i]);
      if (!value.is_data()) fail_unsupported("a list or dict with something undefined in it");
      return *value.data;
    };
    Json result = node.kind == Expression::Kind::kList ? Json::array() : Json::object();
    if (node.kind == Expression::Kind::kList) {
      for (std::size_t i = 0; i < node.children.size(); ++i) result.push_back(data(i));
    } else {
      for (std::size_t i = 0; i < node.children.size(); i += 2) {
        const Json key = data(i);
        if (!key.is_string()) fail_unsupported("a dict with a key that is no text");
        result[key.get<std::string>()] = data(i + 1);
      }
    }
    return Value::of(std::move(result));
  }

  /// Arguments of a call, filter or test: the children behind the first.
  Arguments arguments(const Expression& node) {
    Arguments result;
    for (std::size_t i = 1; i < node.children.size(); ++i)
      result.positional.push_back(used(evaluate(*node.children[i])));
    for (const auto& [name, value] : node.named) result.named.emplace_back(name, used(evaluate(*value)));
    return result;
  }

  Value call(const Expression& node) {
    const Expression& callee = *node.children[0];
    if (callee.kind == Expression::Kind::kAttribute) {
      const Value object = used(evaluate(*callee.children[0]));
      return call_method(object, callee.text, arguments(node));
    }
    const Value function = evaluate(callee);
    if (function.kind == Value::Kind::kFunction) return call_function(function.name, arguments(node));
    if (function.kind == Value::Kind::kMacro) return call_macro(*function.macro, arguments(node));
    if (function.is_undefined()) fail_unsupported("the function " + function.name + "()");
    fail_render("a call of something that is no function");
  }

  Value call_macro(const Statement& macro, Arguments given) {
    if (given.positional.size() > macro.names.size()) fail_render("too many arguments for " + macro.text + "()");
    count_steps(macro.names.size());
    Scope scope;
    const std::size_t required = macro.names.size() - macro.defaults.size();
    for (std::size_t i = 0; i < macro.names.size(); ++i) {
      scope[macro.names[i]] = i < required ? Value::undefined(macro.names[i]) : evaluate(*macro.defaults[i - required]);
    }
    for (std::size_t i = 0; i < given.positional.size(); ++i) scope[macro.names[i]] = given.positional[i];
    for (auto& [name, value] : given.named) {
      if (!scope.contains(name)) fail_render(macro.text + "() has no argument " + name);
      scope[name] = value;
    }
    const std::size_t outer_base = base_;
    base_ = scopes_.size();
    scopes_.push_back(std::move(scope));
    std::string text;
    run(macro.branches[0].body, text);
    scopes_.pop_back();
    base_ = outer_base;
    return Value::of(std::move(text));
  }

  const std::function<void()>& poll_;
  std::vector<Scope> scopes_;
  std::size_t base_ = 0;  // scopes below, but the outermost, belong to callers and are not seen
  int nesting_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t next_poll_ = 0;
};

}  // namespace

Template::Template(std::unique_ptr<Body> body) : body_(std::move(body)) {}
Template::Template(Template&&) noexcept = default;
Template::~Template() = default;

Template Template::parse(std::string_view source) {
  return Template(parse_template(source));
}

std::string Template::render(const Json& variables, const std::function<void()>& poll) const {
  return Evaluator(variables, poll).render(*body_);
}

}  // namespace fastspec::cli::jinja
