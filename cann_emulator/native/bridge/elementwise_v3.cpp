#define ELEMENTWISE_LEVEL elementwise_v3
#include "elementwise_kernels.h"
