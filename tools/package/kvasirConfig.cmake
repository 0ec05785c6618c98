# find_package(kvasir): targets kvasir::rt (static) and kvasir::rt_shared, the program kvasir::kvasir, and
#   kvasir_add_model(<target> MODEL <file> [FORM object|static|shared] [PREFIX <name>] [OPTIONS <options of kvasir build>])
# which compiles a model and makes a library to link with; its header is <prefix>.h, the prefix is the target's name.
get_filename_component(KVASIR_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
include(CMakeFindDependencyMacro)
find_dependency(Threads)

if(NOT TARGET kvasir::kvasir)
  add_executable(kvasir::kvasir IMPORTED)
  set_target_properties(kvasir::kvasir PROPERTIES IMPORTED_LOCATION "${KVASIR_PREFIX}/bin/kvasir")
  add_library(kvasir::rt STATIC IMPORTED)
  set_target_properties(kvasir::rt PROPERTIES
    IMPORTED_LOCATION "${KVASIR_PREFIX}/lib/libkvasir-rt.a"
    INTERFACE_INCLUDE_DIRECTORIES "${KVASIR_PREFIX}/include/kvasir"
    INTERFACE_LINK_LIBRARIES "m;Threads::Threads")
  add_library(kvasir::rt_shared SHARED IMPORTED)
  set_target_properties(kvasir::rt_shared PROPERTIES
    IMPORTED_LOCATION "${KVASIR_PREFIX}/lib/libkvasir-rt.so"
    INTERFACE_INCLUDE_DIRECTORIES "${KVASIR_PREFIX}/include/kvasir")
endif()

function(kvasir_add_model target)
  cmake_parse_arguments(ARG "" "MODEL;FORM;PREFIX" "OPTIONS" ${ARGN})
  if(NOT ARG_FORM)
    set(ARG_FORM static)
  endif()
  if(NOT ARG_PREFIX)
    set(ARG_PREFIX ${target})
  endif()
  get_filename_component(model "${ARG_MODEL}" ABSOLUTE)
  set(dir "${CMAKE_CURRENT_BINARY_DIR}/${target}.model")
  file(MAKE_DIRECTORY "${dir}")
  set(file_object "${dir}/${ARG_PREFIX}.o")
  set(file_static "${dir}/${ARG_PREFIX}.a")
  set(file_shared "${dir}/${ARG_PREFIX}.so")
  set(out "${file_${ARG_FORM}}")
  set(flag --${ARG_FORM})
  add_custom_command(OUTPUT "${out}" "${dir}/${ARG_PREFIX}.h"
    COMMAND kvasir::kvasir build "${model}" ${flag} --prefix ${ARG_PREFIX} ${ARG_OPTIONS} -o "${out}"
    DEPENDS "${model}" VERBATIM)
  add_custom_target(${target}_model DEPENDS "${out}")
  add_library(${target} INTERFACE)
  add_dependencies(${target} ${target}_model)
  target_include_directories(${target} INTERFACE "${dir}")
  target_link_libraries(${target} INTERFACE "${out}")
  if(NOT ARG_FORM STREQUAL shared)
    target_link_libraries(${target} INTERFACE kvasir::rt)
  endif()
endfunction()
