struct Model {
    const float *table[3];             // [height][4]
    int height[3];
    const float *weight[4], *bias[4];  // [outputs][inputs] and [outputs] of the layers 13-8, 8-4, 10-8, 8-1
};

// <kernel>

void launch(const float* dense, const long long* ids, const float* table0, const float* table1, const float* table2,
            const float* weight0, const float* weight1, const float* weight2, const float* weight3,
            const float* bias0, const float* bias1, const float* bias2, const float* bias3, float* out,
            long long height0, long long height1, long long height2, long long batch) {
    Model model = {{table0, table1, table2}, {int(height0), int(height1), int(height2)},
                   {weight0, weight1, weight2, weight3}, {bias0, bias1, bias2, bias3}};
    forward<<<(batch + 127) / 128, 128>>>(dense, ids, model, out, batch);
}
