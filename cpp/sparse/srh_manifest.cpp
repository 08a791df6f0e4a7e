// See srh_manifest.h.
#include "sparse/srh_manifest.h"

#include <algorithm>

#include "base/check.h"
#include "io/json.h"

namespace fastspec {

namespace {

constexpr JsonLimits kLimits{.max_bytes = std::size_t{4} << 20, .max_depth = 16};
constexpr const char* kFormat = "fastspec-srh";
constexpr int kVersion = 1;
constexpr int kMostLayers = 1024, kMostSlots = 1 << 24;  // of anything that is real

std::string read_fingerprint(const JsonView& view) {
  const std::string& text = view.as_string();
  const bool is_hex =
      std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (text.size() != 16 || !is_hex) {
    view.refuse(ErrorCode::kInvalidFile, "\"", shown(text), "\" is no fingerprint: 16 lower-case hexadecimal digits");
  }
  return text;
}

LayerHeads read_layer(const JsonView& view) {
  LayerHeads layer{.layer = static_cast<int>(view.at("layer").as_integer(0, kMostLayers - 1))};
  const JsonView heads = view.at("heads");
  if (heads.array_size() == 0) heads.refuse(ErrorCode::kInvalidFile, "names no head");
  for (const JsonView& head : heads.elements()) {
    layer.heads.push_back(static_cast<int>(head.as_integer(0, kMostLayers - 1)));
    if (layer.heads.size() > static_cast<std::size_t>(kMaxScoredHeads)) {
      heads.refuse(ErrorCode::kUnsupported, "names more than ", kMaxScoredHeads, " heads");
    }
  }
  std::sort(layer.heads.begin(), layer.heads.end());
  const auto twice = std::adjacent_find(layer.heads.begin(), layer.heads.end());
  if (twice != layer.heads.end()) heads.refuse(ErrorCode::kInvalidFile, "names head ", *twice, " twice");
  return layer;
}

std::vector<LayerHeads> read_layers(const JsonView& view) {
  std::vector<LayerHeads> layers;
  if (view.array_size() == 0) view.refuse(ErrorCode::kInvalidFile, "names no layer");
  if (view.array_size() > kMostLayers) view.refuse(ErrorCode::kInvalidFile, "names ", view.array_size(), " layers");
  for (const JsonView& layer : view.elements()) layers.push_back(read_layer(layer));
  std::sort(layers.begin(), layers.end(), [](const auto& a, const auto& b) { return a.layer < b.layer; });
  const auto twice =
      std::adjacent_find(layers.begin(), layers.end(), [](const auto& a, const auto& b) { return a.layer == b.layer; });
  if (twice != layers.end()) view.refuse(ErrorCode::kInvalidFile, "names layer ", twice->layer, " twice");
  return layers;
}

SrhManifest::Drafter read_drafter(const JsonView& view) {
  SrhManifest::Drafter drafter{.fingerprint = read_fingerprint(view.at("fingerprint")),
                               .kind = view.at("kind").as_string(),
                               .layers = read_layers(view.at("layers"))};
  if (drafter.kind != "longspec" && drafter.kind != "standalone") {
    view.at("kind").refuse(ErrorCode::kUnsupported, "\"", shown(drafter.kind), "\": expected longspec or standalone");
  }
  if (drafter.kind == "longspec" && (drafter.layers.size() != 1 || drafter.layers[0].layer != 0)) {
    view.at("layers").refuse(ErrorCode::kInvalidFile, "a longspec drafter has one layer, 0");
  }
  return drafter;
}

int read_slots(const JsonView& document, const char* name, int least) {
  return static_cast<int>(document.at(name).as_integer(least, kMostSlots));
}

void check_heads(const SrhManifest& manifest, const std::vector<LayerHeads>& layers, const char* whose,
                 const SrhModel& model) {
  for (const LayerHeads& layer : layers) {
    if (layer.layer >= model.num_layers) {
      fail(ErrorCode::kInvalidArgument, manifest.file, ": field \"", whose, ".layers\": layer ", layer.layer, ", the ",
           whose, " has ", model.num_layers);
    }
    if (layer.heads.back() >= model.num_heads) {
      fail(ErrorCode::kInvalidArgument, manifest.file, ": field \"", whose, ".layers\": head ", layer.heads.back(),
           " of layer ", layer.layer, ", the ", whose, " has ", model.num_heads, " query heads");
    }
  }
}

void check_fingerprint(const SrhManifest& manifest, const std::string& named, const char* whose,
                       const SrhModel& model) {
  if (named == model.fingerprint) return;
  fail(ErrorCode::kInvalidArgument, manifest.file, ": field \"", whose, ".fingerprint\" is ", named, ", the ", whose,
       " that is loaded has ", model.fingerprint, ": the manifest was made for another one; make one for this pair");
}

}  // namespace

SrhManifest read_srh_manifest(const std::string& path) {
  const Json json = parse_json_file(path, kLimits);
  const JsonView document(json, path);
  if (document.at("format").as_string() != kFormat) {
    document.at("format").refuse(ErrorCode::kInvalidFile, "\"", shown(document.at("format").as_string()),
                                 "\" is not \"", kFormat, "\"");
  }
  if (const std::int64_t version = document.at("version").as_integer(); version != kVersion) {
    document.at("version").refuse(ErrorCode::kUnsupported, version, " is not known here, ", kVersion, " is");
  }
  SrhManifest manifest{.file = path};
  manifest.target_fingerprint = read_fingerprint(document.at("target").at("fingerprint"));
  manifest.target_layers = read_layers(document.at("target").at("layers"));
  if (const auto drafter = document.find("drafter")) manifest.drafter = read_drafter(*drafter);
  manifest.budget = read_slots(document, "budget", 1);
  manifest.sinks = read_slots(document, "sinks", 0);
  manifest.recent = read_slots(document, "recent", 0);
  manifest.lookahead_slots = read_slots(document, "lookahead_slots", 0);
  if (std::int64_t{manifest.sinks} + manifest.recent + manifest.lookahead_slots > manifest.budget) {
    document.at("budget").refuse(ErrorCode::kInvalidFile, manifest.budget, " keys cannot hold ", manifest.sinks,
                                 " sinks, ", manifest.recent, " recent ones and ", manifest.lookahead_slots,
                                 " by lookahead");
  }
  if (manifest.lookahead_slots > 0 && !manifest.drafter) {
    document.at("lookahead_slots")
        .refuse(ErrorCode::kInvalidFile, manifest.lookahead_slots, " keys by lookahead, and no drafter that looks");
  }
  const JsonView pooling = document.at("pooling");
  if (pooling.as_string() != "mean" && pooling.as_string() != "max") {
    pooling.refuse(ErrorCode::kInvalidFile, "\"", shown(pooling.as_string()), "\": expected mean or max");
  }
  manifest.pooling = pooling.as_string() == "max" ? RowPooling::kMax : RowPooling::kMean;
  return manifest;
}

void check_target(const SrhManifest& manifest, const SrhModel& target) {
  check_fingerprint(manifest, manifest.target_fingerprint, "target", target);
  check_heads(manifest, manifest.target_layers, "target", target);
}

void check_drafter(const SrhManifest& manifest, const std::string& kind, const SrhModel& drafter) {
  if (!manifest.drafter) return;
  if (kind != manifest.drafter->kind) {
    fail(ErrorCode::kInvalidArgument, manifest.file, ": field \"drafter.kind\" is ", manifest.drafter->kind,
         ", the engine drafts with ", kind.empty() ? "nothing" : kind, ": name that drafter, or the selector history, ",
         "which needs none");
  }
  check_fingerprint(manifest, manifest.drafter->fingerprint, "drafter", drafter);
  check_heads(manifest, manifest.drafter->layers, "drafter", drafter);
}

}  // namespace fastspec
