// Text to token ids and back.
#include <fastspec/tokenizer.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "bind.h"
#include "convert.h"

namespace py = pybind11;

namespace fastspec::python {
namespace {

/// A decoding stream that keeps its tokenizer alive.
struct PythonStream {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<Tokenizer::Stream> stream;
};

}  // namespace

void bind_tokenizer(py::module_& module) {
  // pybind11 knows no pointer to const; every method of the class is const.
  py::class_<Tokenizer, std::shared_ptr<Tokenizer>> tokenizer(
      module, "Tokenizer", "A byte-level or byte-fallback BPE tokenizer from tokenizer.json. Safe from any thread.");

  py::class_<PythonStream> stream(tokenizer, "Stream",
                                  "Incremental decoding of one sequence; never emits half a character.");
  refuse_unfilled(tokenizer);
  refuse_unfilled(stream);

  stream
      .def(
          "push", [](PythonStream& self, Strict<TokenId> id) { return self.stream->push(id.value); }, py::arg("id"),
          "Text that became certain by appending a token; may be empty.")
      .def(
          "finish", [](PythonStream& self) { return self.stream->finish(); },
          "What is still waiting, incomplete bytes as U+FFFD.");

  tokenizer
      .def_static(
          "load",
          [](const std::filesystem::path& path) {
            const py::gil_scoped_release release;
            return std::const_pointer_cast<Tokenizer>(Tokenizer::load(path));
          },
          py::arg("path"),
          "Loads tokenizer.json, or that of a model directory. Raises a FastSpecError naming the file and the field at "
          "fault.")
      .def(
          "encode",
          [](const Tokenizer& self, const Strict<std::string>& text, bool add_special_tokens) {
            const py::gil_scoped_release release;
            return self.encode(text.value, add_special_tokens);
          },
          py::arg("text"), py::arg("add_special_tokens") = true,
          "Token ids of a text. add_special_tokens: apply the file's post-processor (a leading BOS, for instance).")
      .def(
          "decode",
          [](const Tokenizer& self, const Strict<std::vector<TokenId>>& ids, bool skip_special_tokens) {
            const py::gil_scoped_release release;
            return self.decode(ids.value, skip_special_tokens);
          },
          py::arg("ids"), py::arg("skip_special_tokens") = true,
          "Text of token ids, incomplete UTF-8 as U+FFFD. Raises InvalidArgumentError for an id outside the "
          "vocabulary.")
      .def_property_readonly("vocab_size", &Tokenizer::vocab_size,
                             "Size of the id space: largest id + 1, added tokens included.")
      .def(
          "token_to_id",
          [](const Tokenizer& self, const Strict<std::string>& token) { return self.token_to_id(token.value); },
          py::arg("token"), "The id of a token spelled exactly so, added tokens included; None when there is none.")
      .def(
          "id_to_token", [](const Tokenizer& self, Strict<TokenId> id) { return self.id_to_token(id.value); },
          py::arg("id"),
          "The spelling of an id in the vocabulary (byte-level alphabet, not text); empty for an unused id.")
      .def(
          "is_special", [](const Tokenizer& self, Strict<TokenId> id) { return self.is_special(id.value); },
          py::arg("id"))
      .def(
          "stream",
          [](const std::shared_ptr<Tokenizer>& self, bool skip_special_tokens) {
            return PythonStream{self, self->stream(skip_special_tokens)};
          },
          py::arg("skip_special_tokens") = true, "A Stream for one sequence.");
}

}  // namespace fastspec::python
