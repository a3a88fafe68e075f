// Crops of decoded images, resized and mirrored: bit for bit what Augmentation.resize has OpenCV make.
//
// One text for NVRTC (the GPU) and for the host's C++ compiler, which tests compare with OpenCV. Sums of products are
// not to be contracted (--fmad=false, -ffp-contract=off): places are computed as OpenCV computes them.
// Source: OpenCV, modules/imgproc/src/resize.cpp (INTER_LINEAR in 11 bits, INTER_AREA by whole numbers).

typedef long long i64;
typedef unsigned char u8;

#ifdef __CUDACC__
#define PENSTOCK_CODE static __device__ inline
#else
#include <math.h>
#define PENSTOCK_CODE static inline
#endif

enum { IMAGE, ROW, PIXEL, COLOUR, HEIGHT, WIDTH, MIRRORED, WORDS };
// A crop: the address of its first byte; bytes from one row, pixel and colour to the next; its size; whether mirrored.

struct Tap {
    int first, second;    // places of the two pixels
    int weights[2];       // theirs, of 2048
};

PENSTOCK_CODE Tap tap(int at, int from, int to, bool is_row) {
    double scale = 1.0 / ((double)to / from);
    float place = (float)((at + 0.5) * scale - 0.5);
    int first = (int)floorf(place);
    float rest = place - first;
    if (!is_row && first < 0) { rest = 0; first = 0; }
    if (!is_row && first >= from - 1) { rest = 0; first = from - 1; }
    Tap found;
    found.weights[0] = (int)rintf((1.f - rest) * 2048);
    found.weights[1] = (int)rintf(rest * 2048);
    int second = first + 1;
    found.first = first < 0 ? 0 : first > from - 1 ? from - 1 : first;
    found.second = second < 0 ? 0 : second > from - 1 ? from - 1 : second;
    return found;
}

PENSTOCK_CODE int linear(const u8 *image, const i64 *crop, Tap row, Tap pixel) {
    int lines[2];
    for (int i = 0; i < 2; ++i) {
        const u8 *line = image + crop[ROW] * (i ? row.second : row.first);
        lines[i] = line[crop[PIXEL] * pixel.first] * pixel.weights[0] + line[crop[PIXEL] * pixel.second] * pixel.weights[1];
    }
    return (((row.weights[0] * (lines[0] >> 4)) >> 16) + ((row.weights[1] * (lines[1] >> 4)) >> 16) + 2) >> 2;
}

PENSTOCK_CODE int mean(int sum, int down, int right) {
    return down == 2 && right == 2 ? (sum + 2) >> 2 : (int)rintf(sum * (1.f / (down * right)));
}

// Each side is shrunk to less than half by means of 2 to 4 pixels.
PENSTOCK_CODE int averaged(i64 side, int size) {
    i64 whole = side / size;
    return whole < 1 ? 1 : whole > 4 ? 4 : (int)whole;
}

PENSTOCK_CODE void finish(const i64 *crop, u8 *out, int size, int y, int x) {
    int height = (int)crop[HEIGHT], width = (int)crop[WIDTH];
    int down = averaged(height, size), right = averaged(width, size);
    bool is_halved = height == 2 * down * size && width == 2 * right * size;  // OpenCV takes means of four then
    int sums[3] = {0, 0, 0};
    for (int j = y * down; j < (y + 1) * down; ++j) {
        Tap row = tap(j, height, down * size, true);
        for (int i = x * right; i < (x + 1) * right; ++i) {
            Tap pixel = tap(i, width, right * size, false);
            for (int colour = 0; colour < 3; ++colour) {
                const u8 *image = (const u8 *)crop[IMAGE] + crop[COLOUR] * colour;
                if (is_halved) {
                    const u8 *one = image + crop[ROW] * 2 * j + crop[PIXEL] * 2 * i, *below = one + crop[ROW];
                    sums[colour] += mean(one[0] + one[crop[PIXEL]] + below[0] + below[crop[PIXEL]], 2, 2);
                } else {
                    sums[colour] += linear(image, crop, row, pixel);
                }
            }
        }
    }
    u8 *to = out + 3 * ((i64)y * size + (crop[MIRRORED] ? size - 1 - x : x));
    for (int colour = 0; colour < 3; ++colour) to[colour] = (u8)mean(sums[colour], down, right);
}

#ifdef __CUDACC__
extern "C" __global__ void penstock_crops(const i64 *crops, u8 *out, int size) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, number = blockIdx.z;
    if (x < size && y < size) finish(crops + number * WORDS, out + (i64)number * 3 * size * size, size, y, x);
}
#else
extern "C" void penstock_crops(const i64 *crops, u8 *out, int size, int count) {
    for (int number = 0; number < count; ++number)
        for (int y = 0; y < size; ++y)
            for (int x = 0; x < size; ++x)
                finish(crops + number * WORDS, out + (i64)number * 3 * size * size, size, y, x);
}
#endif
