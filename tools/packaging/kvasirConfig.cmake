# find_package(kvasir): targets kvasir::library (the compiler, <kvasir.h>), kvasir::rt (static) and kvasir::rt_shared, the
# program kvasir::kvasir, and
#   kvasir_add_model(<target> MODEL <file> [FORM object|static|shared] [PREFIX <name>] [OPTIONS <options of kvasir build>])
# which compiles a model and makes a library to link with; its header is <prefix>.h, the prefix is the target's name.
# Files that the model names (weights beside it) are not followed: touch the model to have it compiled again.
get_filename_component(KVASIR_PREFIX "${CMAKE_CURRENT_LIST_DIR}" REALPATH) # /lib may be a link to /usr/lib
get_filename_component(KVASIR_PREFIX "${KVASIR_PREFIX}/../../.." ABSOLUTE)
include(CMakeFindDependencyMacro)
find_dependency(Threads)

if(NOT TARGET kvasir::kvasir)
  add_executable(kvasir::kvasir IMPORTED)
  set_target_properties(kvasir::kvasir PROPERTIES IMPORTED_LOCATION "${KVASIR_PREFIX}/bin/kvasir")
  add_library(kvasir::rt STATIC IMPORTED)
  set_target_properties(kvasir::rt PROPERTIES
    IMPORTED_LOCATION "${KVASIR_PREFIX}/lib/libkvasir-rt.a"
    INTERFACE_INCLUDE_DIRECTORIES "${KVASIR_PREFIX}/include/kvasir"
    INTERFACE_LINK_LIBRARIES "-lm;Threads::Threads") # "m" alone would be a target of that name, if there is one
  add_library(kvasir::library SHARED IMPORTED)
  set_target_properties(kvasir::library PROPERTIES
    IMPORTED_LOCATION "${KVASIR_PREFIX}/lib/libkvasir.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${KVASIR_PREFIX}/include/kvasir")
  add_library(kvasir::rt_shared SHARED IMPORTED)
  set_target_properties(kvasir::rt_shared PROPERTIES
    IMPORTED_LOCATION "${KVASIR_PREFIX}/lib/libkvasir-rt.so"
    INTERFACE_INCLUDE_DIRECTORIES "${KVASIR_PREFIX}/include/kvasir")
endif()

function(kvasir_add_model target)
  cmake_parse_arguments(ARG "" "MODEL;FORM;PREFIX" "OPTIONS" ${ARGN})
  if(NOT ARG_FORM)
    set(ARG_FORM static)
  elseif(NOT ARG_FORM MATCHES "^(object|static|shared)$")
    message(FATAL_ERROR "kvasir_add_model(${target}): FORM is object, static or shared, not ${ARG_FORM}")
  endif()
  if(NOT ARG_MODEL OR ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvasir_add_model(${target}): MODEL <file> is needed; not understood: ${ARG_UNPARSED_ARGUMENTS}")
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
    DEPENDS "${model}" kvasir::kvasir VERBATIM)
  add_custom_target(${target}_model DEPENDS "${out}")
  add_library(${target} INTERFACE)
  add_dependencies(${target} ${target}_model)
  target_include_directories(${target} INTERFACE "${dir}")
  if(ARG_FORM STREQUAL shared)
    # A path alone does not do: CMake looks into the file for its soname, and there is no file before the first build.
    add_library(${target}_library SHARED IMPORTED GLOBAL)
    set_target_properties(${target}_library PROPERTIES IMPORTED_LOCATION "${out}" IMPORTED_SONAME "${ARG_PREFIX}.so")
    target_link_libraries(${target} INTERFACE ${target}_library)
  else()
    target_link_libraries(${target} INTERFACE "${out}" kvasir::rt)
  endif()
endfunction()
