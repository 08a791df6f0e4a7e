// The library's version. The value comes from pyproject.toml through CMake, its only home.
#pragma once

namespace fastspec {

/// "major.minor.patch"
const char* version() noexcept;

}  // namespace fastspec
