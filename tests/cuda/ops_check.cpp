// Every operation of the CUDA backend against the reference, over random shapes and element types, with poisoned
// outputs.
//   fastspec_cuda_ops_check [--device cuda:0] [--only PART_OF_A_NAME] [--small 1]
// --small 1: few and small cases of every kind, fit for compute-sanitizer.
// Exit code 1 where a case fails, 77 where there is no GPU.
#include <cstdio>
#include <string>

#include "base/check.h"
#include "cuda/ops_cases.h"

int main(int argc, char** argv) {
  using namespace fastspec;
  using namespace fastspec::gpu_check;
  std::string device = "cuda:0", only;
  bool small = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--device") device = argv[i + 1];
    if (option == "--only") only = argv[i + 1];
    if (option == "--small") small = std::string(argv[i + 1]) != "0";
  }
  try {
    (void)make_backend(device, DType::kFloat32, 1);
  } catch (const Error& error) {
    std::printf("no GPU: %s\n", error.what());
    return error.code() == ErrorCode::kUnsupported ? 77 : 1;
  }
  Report report(only, small);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    Sides sides(device, dtype);
    check_layers(sides, report);
    check_kv_operations(sides, report);
    check_sparse(sides, report);
    if (dtype == DType::kFloat32) check_sampling(sides, report);
    if (dtype == DType::kFloat32) check_proposals(sides, report);
    if (dtype == DType::kFloat32) check_drafts(sides, report);
  }
  check_engines(device, report);
  return report.finish();
}
