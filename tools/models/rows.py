"""The models of the corpus, as data: one row an architecture.

A row is (name, what makes it, its inputs, which exporters). Inputs are "name:element:shape", one after the other.
Elements: f is float32, a number n is int64 below n, b is bool. Letters in shapes are dimensions; SIZES gives each
its extent in the static model, in the trace of the dynamic one, and in a second run of that. Exporters: s is
TorchScript, d is dynamo. A small letter makes a static and a dynamic model, a capital one only the static model.
"""

SIZES = {"B": (1, 2, 3), "S": (64, 48, 80), "T": (32, 24, 40)}

IMAGE = "x:f:B,3,224,224"
TEXT = "input_ids:1000:B,S attention_mask:2:B,S"
IDS = "input_ids:1000:B,S"

# name, inputs, exporters: models at their own size.
TORCHVISION = [
    ("alexnet", IMAGE, "sd"), ("vgg11", IMAGE, "s"), ("vgg16", IMAGE, "S"), ("resnet18", IMAGE, "sd"),
    ("resnet50", IMAGE, "sd"), ("resnext50_32x4d", IMAGE, "s"), ("wide_resnet50_2", IMAGE, "S"),
    ("densenet121", IMAGE, "s"), ("squeezenet1_1", IMAGE, "sd"), ("googlenet", IMAGE, "s"),
    ("inception_v3", "x:f:B,3,299,299", "s"), ("mobilenet_v2", IMAGE, "sd"), ("mobilenet_v3_small", IMAGE, "sd"),
    ("mnasnet1_0", IMAGE, "s"), ("shufflenet_v2_x1_0", IMAGE, "sd"), ("efficientnet_b0", IMAGE, "sd"),
    ("efficientnet_v2_s", IMAGE, "S"), ("regnet_y_400mf", IMAGE, "s"), ("convnext_tiny", IMAGE, "sd"),
    ("vit_b_16", IMAGE, "sd"), ("swin_t", IMAGE, "sd"), ("swin_v2_t", IMAGE, "S"), ("maxvit_t", IMAGE, "S"),
    ("fcn_resnet50", IMAGE, "s"), ("deeplabv3_mobilenet_v3_large", IMAGE, "s"),
    ("lraspp_mobilenet_v3_large", IMAGE, "s"), ("r3d_18", "x:f:B,3,8,112,112", "s"),
    ("mvit_v1_b", "x:f:B,3,16,224,224", "S"), ("raft_small", "a:f:B,3,128,128 b:f:B,3,128,128", "S"),
    ("ssdlite320_mobilenet_v3_large", "x:f:1,3,320,320", "S"),
    ("fasterrcnn_mobilenet_v3_large_320_fpn", "x:f:1,3,320,320", "S"),
    ("retinanet_resnet50_fpn", "x:f:1,3,320,320", "S"),
]

TIMM = [
    ("vit_tiny_patch16_224", IMAGE, "sd"), ("deit_tiny_distilled_patch16_224", IMAGE, "s"),
    ("mixer_s32_224", IMAGE, "s"), ("resmlp_12_224", IMAGE, "s"), ("gmlp_ti16_224", IMAGE, "s"),
    ("convnextv2_atto", IMAGE, "d"), ("cait_xxs24_224", IMAGE, "s"), ("xcit_nano_12_p16_224", IMAGE, "s"),
    ("pvt_v2_b0", IMAGE, "s"), ("poolformer_s12", IMAGE, "s"), ("mobilevit_xxs", "x:f:B,3,256,256", "sd"),
    ("mobilevitv2_050", "x:f:B,3,256,256", "s"), ("edgenext_xx_small", "x:f:B,3,256,256", "s"),
    ("efficientformer_l1", IMAGE, "s"), ("levit_128s", IMAGE, "sd"), ("crossvit_tiny_240", "x:f:B,3,240,240", "s"),
    ("coat_lite_tiny", IMAGE, "s"), ("convit_tiny", IMAGE, "s"), ("twins_svt_small", IMAGE, "s"),
    ("ghostnet_100", IMAGE, "s"), ("hrnet_w18_small", IMAGE, "s"), ("dla34", IMAGE, "s"), ("repvgg_a0", IMAGE, "s"),
    ("rexnet_100", IMAGE, "s"), ("res2net50_26w_4s", IMAGE, "s"), ("resnest14d", IMAGE, "s"),
    ("nf_regnet_b0", "x:f:B,3,192,192", "s"), ("visformer_tiny", IMAGE, "s"), ("cspdarknet53", IMAGE, "s"),
    ("hardcorenas_a", IMAGE, "s"), ("lcnet_050", IMAGE, "s"), ("selecsls42b", IMAGE, "s"),
    ("volo_d1_224", IMAGE, "S"), ("focalnet_tiny_srf", IMAGE, "s"), ("davit_tiny", IMAGE, "S"),
    ("gcvit_xxtiny", IMAGE, "S"), ("nest_tiny", IMAGE, "s"), ("fastvit_t8", "x:f:B,3,256,256", "s"),
    ("repvit_m1", IMAGE, "s"), ("efficientvit_b0", IMAGE, "d"), ("mobileone_s0", IMAGE, "s"),
    ("mobilenetv4_conv_small", IMAGE, "d"), ("starnet_s1", IMAGE, "s"), ("tiny_vit_5m_224", IMAGE, "s"),
    ("eva02_tiny_patch14_224", IMAGE, "d"), ("hiera_tiny_224", IMAGE, "s"), ("ese_vovnet19b_dw", IMAGE, "s"),
    ("inception_next_atto", IMAGE, "d"), ("botnet26t_256", "x:f:B,3,256,256", "s"),
    ("halonet26t", "x:f:B,3,256,256", "S"), ("lambda_resnet26t", "x:f:B,3,256,256", "S"),
    ("sequencer2d_s", IMAGE, "S"),
]

# Settings of small models: those that a configuration has are used.
TINY = dict(vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=256, max_position_embeddings=512, n_embd=128, n_layer=2, n_head=4, n_positions=512, d_model=128,
            encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256,
            decoder_ffn_dim=256, ffn_dim=256, word_embed_proj_dim=128, num_layers=2, num_heads=4, d_ff=256, d_kv=32, dim=128,
            hidden_dim=256, n_layers=2, n_heads=4, head_dim=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=0, forced_eos_token_id=2, tie_word_embeddings=False)
VISION = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, image_size=64, patch_size=16)
SEQ2SEQ = "input_ids:1000:B,S decoder_input_ids:1000:B,T"
LATENT = "sample:f:B,4,16,16 timestep:1000:B encoder_hidden_states:f:B,T,32"

# name, class of the model, class of its configuration, settings, inputs, exporters.
TRANSFORMERS = [
    ("bert-base", "BertModel", "BertConfig", dict(vocab_size=30522), TEXT, "sd"),  # at its own size
    ("bert", "BertForSequenceClassification", "BertConfig", TINY, TEXT, "sd"),
    ("roberta", "RobertaModel", "RobertaConfig", TINY, TEXT, "s"),
    ("distilbert", "DistilBertModel", "DistilBertConfig", TINY, TEXT, "sd"),
    ("albert", "AlbertModel", "AlbertConfig", TINY, TEXT, "s"),
    ("electra", "ElectraModel", "ElectraConfig", TINY, TEXT, "s"),
    ("deberta", "DebertaModel", "DebertaConfig", TINY, TEXT, "s"),
    ("deberta-v2", "DebertaV2Model", "DebertaV2Config",
     dict(TINY, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=32), TEXT, "s"),
    ("mpnet", "MPNetModel", "MPNetConfig", TINY, TEXT, "s"),
    ("mobilebert", "MobileBertModel", "MobileBertConfig", dict(vocab_size=1000, num_hidden_layers=2), TEXT, "s"),
    ("squeezebert", "SqueezeBertModel", "SqueezeBertConfig", dict(TINY, embedding_size=128), TEXT, "s"),
    ("modernbert", "ModernBertModel", "ModernBertConfig", TINY, TEXT, "d"),
    ("layoutlm", "LayoutLMModel", "LayoutLMConfig", TINY, TEXT, "s"),
    ("fnet", "FNetModel", "FNetConfig", TINY, IDS, "d"),
    ("xlnet", "XLNetModel", "XLNetConfig", dict(TINY, d_inner=256, n_layer=2), IDS, "s"),
    ("gpt2", "GPT2LMHeadModel", "GPT2Config", TINY, TEXT, "sd"),
    ("gpt-neo", "GPTNeoForCausalLM", "GPTNeoConfig", dict(TINY, attention_types=[[["global", "local"], 1]]), TEXT, "d"),
    ("gptj", "GPTJForCausalLM", "GPTJConfig", dict(TINY, rotary_dim=16), TEXT, "d"),
    ("gpt-neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", TINY, TEXT, "d"),
    ("opt", "OPTForCausalLM", "OPTConfig", TINY, TEXT, "d"),
    ("bloom", "BloomForCausalLM", "BloomConfig", TINY, TEXT, "d"),
    ("llama", "LlamaForCausalLM", "LlamaConfig", TINY, TEXT, "sd"),
    ("mistral", "MistralForCausalLM", "MistralConfig", TINY, TEXT, "d"),
    ("qwen2", "Qwen2ForCausalLM", "Qwen2Config", TINY, TEXT, "d"),
    ("qwen3", "Qwen3ForCausalLM", "Qwen3Config", TINY, TEXT, "d"),
    ("gemma2", "Gemma2ForCausalLM", "Gemma2Config", TINY, TEXT, "d"),
    ("phi", "PhiForCausalLM", "PhiConfig", TINY, TEXT, "d"),
    ("falcon", "FalconForCausalLM", "FalconConfig", TINY, TEXT, "d"),
    ("stablelm", "StableLmForCausalLM", "StableLmConfig", TINY, TEXT, "d"),
    ("mamba", "MambaForCausalLM", "MambaConfig", TINY, IDS, "D"),
    ("t5", "T5ForConditionalGeneration", "T5Config", TINY, SEQ2SEQ, "sd"),
    ("bart", "BartForConditionalGeneration", "BartConfig", TINY, SEQ2SEQ, "sd"),
    ("marian", "MarianMTModel", "MarianConfig", TINY, SEQ2SEQ, "d"),
    ("whisper", "WhisperForConditionalGeneration", "WhisperConfig",
     dict(TINY, max_source_positions=100, max_target_positions=64),
     "input_features:f:B,80,200 decoder_input_ids:1000:B,T", "d"),
    ("wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", dict(VISION), "input_values:f:B,8000", "s"),
    ("vit", "ViTModel", "ViTConfig", VISION, "pixel_values:f:B,3,64,64", "sd"),
    ("deit", "DeiTModel", "DeiTConfig", VISION, "pixel_values:f:B,3,64,64", "s"),
    ("beit", "BeitModel", "BeitConfig", dict(VISION, use_relative_position_bias=True), "pixel_values:f:B,3,64,64", "s"),
    ("dinov2", "Dinov2Model", "Dinov2Config", VISION, "pixel_values:f:B,3,64,64", "s"),
    ("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", dict(depths=[1, 1, 1, 1]),
     "pixel_values:f:B,3,128,128", "s"),
    ("detr-yolos", "YolosModel", "YolosConfig", dict(VISION, image_size=[64, 64]), "pixel_values:f:B,3,64,64", "s"),
    ("clip-text", "CLIPTextModel", "CLIPTextConfig", TINY, TEXT, "d"),
    ("clip-vision", "CLIPVisionModel", "CLIPVisionConfig", VISION, "pixel_values:f:B,3,64,64", "s"),
    ("siglip-vision", "SiglipVisionModel", "SiglipVisionConfig", VISION, "pixel_values:f:B,3,64,64", "d"),
    ("patchtst", "PatchTSTForPrediction", "PatchTSTConfig", dict(d_model=64, num_hidden_layers=2, context_length=64),
     "past_values:f:B,64,1", "s"),
]

# name, class, settings, inputs, exporters.
SMALL = dict(block_out_channels=(32, 64), layers_per_block=1)
DIFFUSERS = [
    ("unet2d", "UNet2DModel",
     dict(SMALL, sample_size=32,
          down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")),
     "sample:f:B,3,32,32 timestep:1000:B", "sd"),
    ("unet2d-condition", "UNet2DConditionModel",
     dict(SMALL, sample_size=16, cross_attention_dim=32, attention_head_dim=8,
          down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
          up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")), LATENT, "sd"),
    ("autoencoder-kl", "AutoencoderKL",
     dict(SMALL, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4),
     "sample:f:B,3,64,64", "d"),
    ("vq-model", "VQModel",
     dict(SMALL, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2),
     "sample:f:B,3,32,32", "S"),
    ("dit", "DiTTransformer2DModel",
     dict(num_attention_heads=4, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=16, num_embeds_ada_norm=1000),
     "hidden_states:f:B,4,16,16 timestep:1000:B class_labels:1000:B", "s"),
    ("sd3", "SD3Transformer2DModel",
     dict(sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=4,
          out_channels=4, joint_attention_dim=32, caption_projection_dim=64, pooled_projection_dim=48, pos_embed_max_size=32),
     "hidden_states:f:B,4,16,16 encoder_hidden_states:f:B,T,32 pooled_projections:f:B,48 timestep:1000:B", "s"),
]

# name, class in scikit-learn, settings. All have a symbolic batch.
SKLEARN = [
    ("logistic", "linear_model.LogisticRegression", {}), ("ridge", "linear_model.Ridge", {}),
    ("sgd", "linear_model.SGDClassifier", dict(loss="log_loss")), ("tree", "tree.DecisionTreeClassifier", {}),
    ("forest", "ensemble.RandomForestClassifier", dict(n_estimators=50)),
    ("extra-trees", "ensemble.ExtraTreesRegressor", dict(n_estimators=50)),
    ("boosting", "ensemble.GradientBoostingRegressor", {}),
    ("hist-boosting", "ensemble.HistGradientBoostingRegressor", dict(max_iter=20)),
    ("isolation", "ensemble.IsolationForest", dict(n_estimators=20)),
    ("adaboost", "ensemble.AdaBoostClassifier", dict(n_estimators=10)), ("svc", "svm.SVC", dict(probability=True)),
    ("svr", "svm.SVR", {}), ("linear-svc", "svm.LinearSVC", {}), ("knn", "neighbors.KNeighborsClassifier", {}),
    ("kmeans", "cluster.KMeans", dict(n_clusters=5)), ("naive-bayes", "naive_bayes.GaussianNB", {}),
    ("mlp", "neural_network.MLPClassifier", dict(max_iter=30)),
    ("gaussian-process", "gaussian_process.GaussianProcessRegressor", {}),
    ("pca", "decomposition.PCA", dict(n_components=4)), ("scaler", "preprocessing.StandardScaler", {}),
    ("polynomial", "preprocessing.PolynomialFeatures", {}),
    ("quantile-bins", "preprocessing.KBinsDiscretizer", dict(n_bins=4, encode="ordinal")),
    ("lda", "discriminant_analysis.LinearDiscriminantAnalysis", {}),
]

# Models of the corpus that ONNX Runtime's quantiser rewrites: weights alone, QDQ, QOperator.
QUANTISED = [
    ("tv-resnet18-s", "qdq"), ("tv-resnet18-s", "qop"), ("tv-mobilenet_v2-s", "qdq"), ("tv-squeezenet1_1-s", "qop"),
    ("tv-shufflenet_v2_x1_0-s", "qop"), ("tv-efficientnet_b0-s", "qdq"), ("tm-vit_tiny_patch16_224-s", "qdq"),
    ("tf-bert-s", "dynamic"), ("tf-bert-sy", "dynamic"), ("tf-gpt2-s", "dynamic"), ("tf-distilbert-s", "qdq"),
    ("tf-t5-s", "dynamic"), ("tf-vit-s", "qop"), ("tv-alexnet-s", "dynamic"),
]
