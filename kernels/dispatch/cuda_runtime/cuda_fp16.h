// In cuda_runtime.h: of the halves the host takes no more than their size.
#pragma once
