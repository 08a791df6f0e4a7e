// Marks functions that run on the host and on the device. Includes no CUDA header, so that a plain C++ compiler can
// test what it marks.
#pragma once

#ifdef __CUDACC__
#define FS_HOST_DEVICE __host__ __device__
#else
#define FS_HOST_DEVICE
#endif
