// The manifest of semantic retrieval heads (Dustin, arXiv 2606.24957): which layers and heads of a target, and of its
// drafter, say best what a sparse pass should read. Made by `python -m fastspec profile srh`. Reads and checks; scores
// nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/params.h"

namespace fastspec {

/// Query heads of one layer, ascending.
struct LayerHeads {
  int layer = 0;
  std::vector<int> heads;
};

struct SrhManifest {
  struct Drafter {
    std::string fingerprint;
    std::string kind;  // "longspec" or "standalone"
    std::vector<LayerHeads> layers;
  };
  std::string file;                // for messages
  std::string target_fingerprint;  // see fastspec/fingerprint.h
  std::vector<LayerHeads> target_layers;
  std::optional<Drafter> drafter;
  int budget = 0;  // what the search was for: keys, and of these
  int sinks = 0;
  int recent = 0;
  int lookahead_slots = 0;
  RowPooling pooling = RowPooling::kMean;
};

/// What a manifest must have been made for.
struct SrhModel {
  std::string fingerprint;
  int num_layers = 0;
  int num_heads = 0;
};

/// @throws Error(kNotFound, kInvalidFile, kUnsupported) naming the file, the field and the value.
SrhManifest read_srh_manifest(const std::string& path);

/// Sees that the manifest is about this target. @throws Error(kInvalidArgument) naming the file, the field, what it
/// says and what is loaded.
void check_target(const SrhManifest& manifest, const SrhModel& target);

/// Sees that it is about this drafter, unless it names none. @param kind of the loaded drafter; "" = none is loaded.
/// @throws as check_target().
void check_drafter(const SrhManifest& manifest, const std::string& kind, const SrhModel& drafter);

}  // namespace fastspec
