// Data types and head dims: which kernel answers each head dim, the smallest that holds it.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "The kernel's head dims for a problem's."));
  std::printf("hdim  ");
  for (const int hdim : {16, 32, 40, 64, 72, 96, 128, 160, 192, 256, 300}) std::printf("%5d", hdim);
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    std::printf("\n%-6s", dtype);
    for (const int hdim : {16, 32, 40, 64, 72, 96, 128, 160, 192, 256, 300}) {
      const auto found =
          session.dispatcher.select(ProblemBuilder().data_type(dtype).dims(hdim, hdim, 1, 64, 64).nheads(2, 2).build());
      std::printf("%5s", found == nullptr ? "-" : found->key().signature[field::hdim_q].text().c_str());
    }
  }
  const auto both =
      session.dispatcher.select(ProblemBuilder().data_type("bf16").dims(192, 128, 1, 64, 64).nheads(2, 2).build());
  std::printf("\nbf16 192 x 128: %s x %s\n", both->key().signature[field::hdim_q].text().c_str(),
              both->key().signature[field::hdim_v].text().c_str());
  return 0;
}
