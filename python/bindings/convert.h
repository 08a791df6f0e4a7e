// Values between Python and C++, stricter than pybind11 alone: a bool is no number, bytes are no text, and text that
// has no UTF-8 is said to be just that. Knows no class of fastspec.
#pragma once

#include <fastspec/error.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <charconv>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace fastspec::python {

template <typename Value>
struct IsVector : std::false_type {};
template <typename Item>
struct IsVector<std::vector<Item>> : std::true_type {};
template <typename Value>
struct IsOptional : std::false_type {};
template <typename Item>
struct IsOptional<std::optional<Item>> : std::true_type {};

/// The UTF-8 of a Python string. Throws cast_error for another type and Error for lone surrogates.
inline std::string text_from_python(pybind11::handle value) {
  if (!PyUnicode_Check(value.ptr())) throw pybind11::cast_error();
  Py_ssize_t size = 0;
  if (const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size)) return {text, static_cast<std::size_t>(size)};
  const pybind11::error_already_set error;
  if (!error.matches(PyExc_UnicodeError)) throw error;
  throw Error(ErrorCode::kInvalidArgument,
              "text with lone surrogates, which is no Unicode: " +
                  pybind11::module_::import("reprlib").attr("repr")(value).cast<std::string>());
}

/// Throws cast_error for a value of another type.
template <typename Value>
Value from_python(pybind11::handle value) {
  if constexpr (IsOptional<Value>::value) {
    return value.is_none() ? Value() : Value(from_python<typename Value::value_type>(value));
  } else if constexpr (IsVector<Value>::value) {
    if (PyByteArray_Check(value.ptr())) throw pybind11::cast_error();
    Value result;
    for (const pybind11::object& item : value.cast<std::vector<pybind11::object>>()) {
      result.push_back(from_python<typename Value::value_type>(item));
    }
    return result;
  } else if constexpr (std::is_same_v<Value, std::string>) {
    return text_from_python(value);
  } else if constexpr (std::is_same_v<Value, bool>) {
    pybind11::detail::make_caster<bool> caster;
    if (!caster.load(value, /*convert=*/false)) throw pybind11::cast_error();
    return pybind11::detail::cast_op<bool>(caster);
  } else {
    if (std::is_arithmetic_v<Value> && PyBool_Check(value.ptr())) throw pybind11::cast_error();
    return pybind11::cast<Value>(value);
  }
}

/// The double whose shortest spelling is that of the float: 0.7f reads back as 0.7, not as 0.699999988.
inline double shortest_double(float value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  double result = value;
  std::from_chars(text, end, result);
  return result;
}

/// `parent` owns the value. An enumerator becomes its name.
template <typename Value>
pybind11::object to_python(const Value& value, pybind11::handle parent) {
  if constexpr (std::is_same_v<Value, float>) {
    return pybind11::float_(shortest_double(value));
  } else if constexpr (std::is_enum_v<Value>) {
    return pybind11::str(to_string(value));
  } else {
    return pybind11::cast(value, pybind11::return_value_policy::reference_internal, parent);
  }
}

/// An argument of a function that is converted by from_python(); another type is pybind11's TypeError.
template <typename Value>
struct Strict {
  Value value;
};

/// After an object is made by __new__ alone, its methods raise TypeError; pybind11 would give them raw memory.
inline void refuse_unfilled(pybind11::handle python_class) {
  const auto type = reinterpret_cast<PyTypeObject*>(python_class.ptr());
  pybind11::detail::get_type_info(type)->operator_new = [](std::size_t) -> void* {
    throw pybind11::type_error("this object was never filled: __init__() has not run");
  };
}

}  // namespace fastspec::python

namespace pybind11::detail {

template <typename Value>
struct type_caster<fastspec::python::Strict<Value>> {
  PYBIND11_TYPE_CASTER(fastspec::python::Strict<Value>, make_caster<Value>::name);

  bool load(handle source, bool) {
    try {
      value.value = fastspec::python::from_python<Value>(source);
      return true;
    } catch (const cast_error&) {
      return false;
    }
  }
};

}  // namespace pybind11::detail
