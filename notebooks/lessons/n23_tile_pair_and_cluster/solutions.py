"""Answers to the puzzles of 23_tile_pair_and_cluster.ipynb, a section a puzzle."""

# %% ring
mine = """
extern "C" __global__ void __launch_bounds__(512) read_weights(const __grid_constant__ Arguments given) {
    float4* const ring = dynamic_shared<float4>();                 // STAGES slots of PANEL float4
    BulkLoads* const loads = (BulkLoads*)(ring + STAGES * PANEL);  // one a slot
    const int thread = threadIdx.x, panels = int(given.count / PANEL);
    float sum = 0;
    auto ask = [&](int p) {
        if (thread != 0 || p >= panels) return;
        loads[p % STAGES].begin(16 * PANEL);
        loads[p % STAGES].copy(ring + p % STAGES * PANEL, given.weights + p * PANEL, 16 * PANEL);
    };
    if (thread == 0)
        for (int slot = 0; slot < STAGES; ++slot) loads[slot].init(1);
    __syncthreads();
    for (int p = 0; p < STAGES; ++p) ask(p);
    for (int p = 0; p < panels; ++p) {
        loads[p % STAGES].wait(p / STAGES % 2);
        for (int i = thread; i < PANEL; i += 512) {
            const float4 w = ring[p % STAGES * PANEL + i];
            sum += w.x + w.y + w.z + w.w;
        }
        __syncthreads();
        ask(p + STAGES);
    }
    given.out[blockIdx.x * 512 + thread] = sum;
}"""
solved = puzzles.attempt("ring", mine)

# %% cuts
mine = ["whole", "outputs", "inputs", "rows", "outputs", "inputs", "rows"]
solved = puzzles.attempt("cuts", mine)
