// SPDX-License-Identifier: MIT
// Host code that cross_entropy and its gradient share.
#pragma once
#include "kernels/norm/cross_entropy.h"
#include "kernels/norm/host.h"

namespace tilekiln::norm {

template <class Args, class Arrays>
void put_entropy(const Args& args, const Arrays& in, int64_t rows, int64_t classes, CrossEntropy& to) {
  put_rows(in.logits, to.logits, to.logits_row);
  put(in.labels, to.labels);
  to.label_bytes = static_cast<int>(dtype_bytes(in.labels.dtype));
  to.rows = rows;
  to.columns = static_cast<int>(classes);
  to.first_class = args.first_class;
  to.ignore_index = args.ignore_index;
  to.logit_scale = args.logit_scale;
  to.lse_square_scale = args.lse_square_scale;
  to.off = args.label_smoothing / static_cast<float>(args.total_classes == 0 ? classes : args.total_classes);
  to.on = 1 - args.label_smoothing;
}

}  // namespace tilekiln::norm
