// A plain C++ struct as a Python class: keyword constructor, checked setters, repr, equality, copy and pickle, all from
// one list of fields. Knows no particular struct.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "convert.h"

namespace fastspec::python {

/// Every field of an object, by name.
inline pybind11::dict fields_of(pybind11::handle object, const std::vector<std::string>& names) {
  pybind11::dict fields;
  for (const std::string& name : names) fields[name.c_str()] = object.attr(name.c_str());
  return fields;
}

template <typename Struct>
class Record {
 public:
  Record(pybind11::module_& module, const char* name, const char* doc)
      : class_(module, name, doc), name_(name), names_(std::make_shared<std::vector<std::string>>()) {
    refuse_unfilled(class_);
  }

  pybind11::class_<Struct>& python_class() { return class_; }

  /// A field that Python may set. `type` is its type as Python people write it.
  template <typename Value>
  Record& field(const char* name, Value Struct::* member, const char* type) {
    return property(
        name, type,
        [member](pybind11::object self) { return to_python(pybind11::cast<const Struct&>(self).*member, self); },
        [member](Struct& self, const pybind11::object& value) { self.*member = from_python<Value>(value); });
  }

  /// A field that is not stored the way Python sees it. The setter throws cast_error for a value of another type.
  template <typename Getter, typename Setter>
  Record& property(const char* name, const char* type, Getter getter, Setter setter) {
    names_->push_back(name);
    const std::string name_of_field = name_ + "." + name;
    const std::string what = name_of_field + ": expected " + type + ", got ";
    class_.def_property(name, getter, [name_of_field, what, setter](Struct& self, const pybind11::object& value) {
      try {
        setter(self, value);
      } catch (const pybind11::cast_error&) {
        throw pybind11::type_error(what + pybind11::repr(value).cast<std::string>());
      } catch (const Error& error) {
        throw Error(error.code(), name_of_field + ": " + error.what());
      }
    });
    return *this;
  }

  /// A field of a result.
  template <typename Value>
  Record& readonly(const char* name, Value Struct::* member) {
    names_->push_back(name);
    stored_.push_back(stored(member));
    class_.def_property_readonly(
        name, [member](pybind11::object self) { return to_python(pybind11::cast<const Struct&>(self).*member, self); });
    return *this;
  }

  /// A field of a result that follows from the others.
  template <typename Getter>
  Record& computed(const char* name, Getter getter) {
    names_->push_back(name);
    class_.def_property_readonly(name, getter);
    return *this;
  }

  /// Ends a class of options: keyword constructor, then `validate(value)`.
  template <typename Validate>
  void finish_options(Validate validate) {
    class_.def(pybind11::init([names = names_, type = name_, validate](const pybind11::kwargs& arguments) {
      Struct value;
      assign(value, arguments, *names, type);
      validate(value);
      return value;
    }));
    class_.def(pybind11::pickle([names = names_](pybind11::handle self) { return fields_of(self, *names); },
                                [names = names_, type = name_](const pybind11::dict& state) {
                                  Struct value;
                                  assign(value, state, *names, type);
                                  return value;
                                }));
    finish_common();
  }
  void finish_options() {
    finish_options([](const Struct&) {});
  }

  /// Ends a class of results: to_dict().
  void finish_results() {
    class_.def(
        "to_dict", [names = names_](pybind11::handle self) { return fields_of(self, *names); },
        "Every field, by name.");
    class_.def(pybind11::pickle(
        [stored = stored_](const Struct& value) {
          pybind11::tuple state(stored.size());
          for (std::size_t i = 0; i < stored.size(); ++i) state[i] = stored[i].save(value);
          return state;
        },
        [stored = stored_, type = name_](const pybind11::tuple& state) {
          if (state.size() != stored.size()) throw pybind11::value_error(type + ": pickled by another version");
          Struct value;
          for (std::size_t i = 0; i < stored.size(); ++i) stored[i].load(value, state[i]);
          return value;
        }));
    finish_common();
  }

 private:
  /// How a field of a result enters and leaves a pickle.
  struct Stored {
    std::function<pybind11::object(const Struct&)> save;
    std::function<void(Struct&, const pybind11::object&)> load;
  };

  template <typename Value>
  static Stored stored(Value Struct::* member) {
    if constexpr (std::is_enum_v<Value>) {
      return {[member](const Struct& self) { return pybind11::int_(static_cast<int>(self.*member)); },
              [member](Struct& self, const pybind11::object& value) {
                self.*member = static_cast<Value>(value.cast<int>());
              }};
    } else {
      return {[member](const Struct& self) { return pybind11::cast(self.*member); },
              [member](Struct& self, const pybind11::object& value) { self.*member = value.cast<Value>(); }};
    }
  }

  static void assign(Struct& value, const pybind11::dict& arguments, const std::vector<std::string>& names,
                     const std::string& type) {
    const pybind11::object self = pybind11::cast(&value, pybind11::return_value_policy::reference);
    for (const auto& [key, argument] : arguments) {
      const auto name = key.template cast<std::string>();
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        std::string possible;
        for (const std::string& known : names) possible += (possible.empty() ? "" : ", ") + known;
        throw pybind11::type_error(type + " has no option '" + name + "'; possible: " + possible);
      }
      pybind11::setattr(self, name.c_str(), argument);
    }
  }

  void finish_common() {
    class_.def("__repr__", [names = names_, type = name_](pybind11::handle self) {
      std::string text;
      for (const std::string& name : *names) {
        text += (text.empty() ? "" : ", ") + name + "=" +
                pybind11::repr(self.attr(name.c_str())).template cast<std::string>();
      }
      return type + "(" + text + ")";
    });
    class_.def("__eq__", [names = names_](pybind11::handle self, pybind11::handle other) -> pybind11::object {
      if (!pybind11::isinstance<Struct>(other)) {
        return pybind11::reinterpret_borrow<pybind11::object>(Py_NotImplemented);
      }
      return pybind11::bool_(fields_of(self, *names).equal(fields_of(other, *names)));
    });
    pybind11::list names;
    for (const std::string& name : *names_) names.append(name);
    class_.attr("_fields") = pybind11::tuple(names);
    class_.attr("__hash__") = pybind11::none();
    class_.attr("__module__") = "fastspec";
  }

  pybind11::class_<Struct> class_;
  std::string name_;
  std::shared_ptr<std::vector<std::string>> names_;
  std::vector<Stored> stored_;
};

}  // namespace fastspec::python
