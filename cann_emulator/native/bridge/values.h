// aclnn arguments as torch values. Tensors share the device's memory.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/ops/from_blob.h>

#include "launch.h"

namespace emu {

// Null tensors are undefined ones. A dtype that torch lacks, and a packed one, is its storage as uint8: for packed
// dtypes the last dimension counts bytes.
at::Tensor to_tensor(const aclTensor* tensor);
at::Scalar to_scalar(const aclScalar& scalar);
// The torch dtype of an aclDataType, where there is one.
std::optional<at::ScalarType> to_dtype(int acl_dtype);

}  // namespace emu
