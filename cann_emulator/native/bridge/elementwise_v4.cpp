#define ELEMENTWISE_LEVEL elementwise_v4
#include "elementwise_kernels.h"
