// CUDA's tensor cores, as TVM uses them: each thread of a warp has the whole tile, and computes and writes all of it.
#pragma once
namespace nvcuda::wmma {
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
template <class Use, int M, int N, int K> struct Tile;
template <int M, int N, int K> struct Tile<matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K> struct Tile<matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };
template <int M, int N, int K> struct Tile<accumulator, M, N, K> { static constexpr int rows = M, columns = N; };
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment : Tile<Use, M, N, K> {
  T x[fragment::rows][fragment::columns];
};
template <class Use, int M, int N, int K, class T, class Layout>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& to, const T* from, unsigned step) {
  for (int i = 0; i < to.rows; ++i)
    for (int j = 0; j < to.columns; ++j)
      to.x[i][j] = __is_same(Layout, col_major) ? from[j * step + i] : from[i * step + j];
}
template <class Use, int M, int N, int K, class T, class Layout>
void fill_fragment(fragment<Use, M, N, K, T, Layout>& to, float value) {
  for (auto& row : to.x)
    for (auto& item : row) item = T(value);
}
template <int M, int N, int K, class T, class S, class A, class B>
void mma_sync(fragment<accumulator, M, N, K, S>& to, const fragment<matrix_a, M, N, K, T, A>& a,
              const fragment<matrix_b, M, N, K, T, B>& b, const fragment<accumulator, M, N, K, S>& c) {
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) {
      float sum = float(c.x[i][j]);
      for (int k = 0; k < K; ++k) sum += float(a.x[i][k]) * float(b.x[k][j]);
      to.x[i][j] = S(sum);
    }
}
template <int M, int N, int K, class T>
void store_matrix_sync(T* to, const fragment<accumulator, M, N, K, T>& from, unsigned step, layout_t layout) {
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) to[layout == mem_col_major ? j * step + i : i * step + j] = from.x[i][j];
}
}  // namespace nvcuda::wmma
