// How the slots of many tokens, a token and one of its experts each, are divided among tiles, and gpt-oss' gate.
//
// Words of the plan: the number of tiles in the first; from HEADER on, for each of up to `most_tiles` tiles its expert, its first place in the order
// and how many slots it has; then the slots in order.
#pragma once
#include "words.h"

#define MOST_EXPERTS 1024
#define TILE_WORDS 3
#define HEADER 4

// Of experts only; after the modes of gemm.h.
constexpr Mode CLAMPED_SWIGLU = (Mode)4;
FN float clamped_swiglu(float gate, float up)
{
    const float g = gate > 7.0f ? 7.0f : gate, u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
    return g * (1.0f / (1.0f + expf(-1.702f * g))) * (u + 1.0f);
}
