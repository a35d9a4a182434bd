#define ELEMENTWISE_LEVEL elementwise_base
#include "elementwise_kernels.h"
