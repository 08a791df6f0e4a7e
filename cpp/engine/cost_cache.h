// Measured costs on disk, so that the next engine of the same kind starts with them. A cache: whatever is wrong with it
// costs a measurement and a line in the log, never an engine.
#pragma once

#include <fastspec/cost_profile.h>

#include <filesystem>
#include <optional>
#include <string>

namespace fastspec {

class CostCache {
 public:
  /// @param directory empty: nothing is kept.
  /// @param key everything that the costs depend on, in words.
  CostCache(std::filesystem::path directory, std::string key);
  /// $FASTSPEC_CACHE, else fastspec under $XDG_CACHE_HOME or ~/.cache; empty where none is known.
  static std::filesystem::path default_directory();

  std::optional<CostParameters> load() const;
  /// Whole or not at all, whoever else writes it. @returns whether it is kept; a warning says why not.
  bool store(const CostParameters& parameters) const;
  const std::string& key() const { return key_; }
  /// Empty where nothing is kept.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::string key_;
};

}  // namespace fastspec
