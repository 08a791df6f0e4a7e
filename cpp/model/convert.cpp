// One plain loop for each pair of types over the conversions of backend/cpu/half.h, which compilers vectorise.
#include "model/convert.h"

#include <cstring>

#include "backend/cpu/half.h"

namespace fastspec {

namespace {

template <typename Source, typename Destination>
void convert(const std::byte* source, std::byte* destination, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Source value;
    Destination converted;
    std::memcpy(&value, source + i * sizeof(value), sizeof(value));  // files do not promise alignment
    cpu::from_float(cpu::to_float(value), converted);
    std::memcpy(destination + i * sizeof(converted), &converted, sizeof(converted));
  }
}

}  // namespace

void convert_elements(const std::byte* source, DType source_dtype, std::byte* destination, DType destination_dtype,
                      std::size_t count) {
  if (source_dtype == destination_dtype) {
    if (count > 0) std::memcpy(destination, source, count * size_of(source_dtype));
    return;
  }
  cpu::dispatch_dtype(source_dtype, [&](auto from) {
    cpu::dispatch_dtype(destination_dtype,
                        [&](auto to) { convert<decltype(from), decltype(to)>(source, destination, count); });
  });
}

}  // namespace fastspec
