# What GPUs this machine has; sourced by other tools. Sets gpu_names and gpu_architectures ("90a", or several with ';'), both empty
# where there is none that the CUDA backend knows (compute capability 8.0 or newer) or FASTSPEC_BACKEND=cpu says to leave it.

find_gpus() {
  gpu_names= gpu_architectures=
  [ "${FASTSPEC_BACKEND:-}" != cpu ] && command -v nvidia-smi > /dev/null || return 0
  local found capability name
  found=$(nvidia-smi --query-gpu=compute_cap,name --format=csv,noheader 2> /dev/null | sort -u) || return 0
  while IFS=, read -r capability name; do
    case $capability in
      8.*) capability=${capability/./} ;;
      9.* | 1[0-9].*) capability=${capability/./}a ;;  # kernels use instructions of this very architecture
      *) continue ;;
    esac
    case ";$gpu_architectures;" in *";$capability;"*) ;; *) gpu_architectures+=${gpu_architectures:+;}$capability ;; esac
    gpu_names+=${gpu_names:+, }${name# }
  done <<< "$found"
}
